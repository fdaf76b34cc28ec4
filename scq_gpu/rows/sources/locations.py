"""Locations of files of rows: local paths, URLs read through fsspec, patterns and folders of either."""

from __future__ import annotations

import glob
import os
import re
import urllib.parse
import urllib.request
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import IO, Any

from scq_gpu._core.files import natural_order
from scq_gpu._core.messages import need

_TAGS = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "last_modified", "mtime", "updated", "created")
_DRIVERS = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("abfs", "az"), "adlfs"),
    **dict.fromkeys(("http", "https"), "aiohttp"),
}


class Remote:
    """A file behind a URL, with the subset of `Path` used here. Credentials are those that fsspec finds."""

    def __init__(self, url: str) -> None:
        self.url = url
        scheme = re.split(r"::|://", url)[0].lower()
        fsspec = need("fsspec", caller=f"reading {url}", install='pip install "scq-gpu[remote]"')
        try:
            self.fs, self.inner = fsspec.core.url_to_fs(url)
        except ImportError as error:
            fix = f"pip install {_DRIVERS[scheme]}" if scheme in _DRIVERS else "install what fsspec asks for"
            raise ImportError(f"reading {url} needs a driver that is not installed ({error}): {fix}") from error
        except ValueError as error:
            raise ValueError(f"{url} is a URL that cannot be opened: {error}") from error

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """Return the last part of the path, without a query."""
        path = urllib.parse.urlsplit(self.url).path if self.url.startswith("http") else self.inner
        return PurePosixPath(path).name

    @property
    def suffix(self) -> str:
        """Return the ending of the name."""
        return PurePosixPath(self.name).suffix

    def resolve(self) -> Remote:
        """Return itself: a URL is not relative to anything."""
        return self

    def open(self, mode: str = "rb", buffering: int = -1) -> IO[bytes]:
        """Open a file that can seek; fsspec does the buffering."""
        file: IO[bytes] = self.fs.open(self.inner, mode)
        return file

    def exists(self) -> bool:
        """Return True if there is such a file or folder."""
        # The exists of fsspec asks web servers for the whole file.
        try:
            self.fs.info(self.inner)
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Return True for a folder; web servers have none."""
        return not self.url.startswith("http") and bool(self.fs.isdir(self.inner))

    def iterdir(self) -> list[Remote]:
        """List a folder."""
        return self._like(self.fs.ls(self.inner, detail=False))

    def glob(self) -> list[Remote]:
        """List the matches of the URL as a pattern."""
        return self._like(self.fs.glob(self.inner))

    def _like(self, inner: Iterable[str]) -> list[Remote]:
        return [Remote(str(self.fs.unstrip_protocol(path))) for path in inner]

    def stamp(self) -> dict[str, Any]:
        """Return the size, and a tag that changes with the version of the file."""
        self.fs.invalidate_cache()
        facts = self.fs.info(self.inner)
        if facts.get("size") is None:
            raise ValueError(f"{self.url} does not say how long it is, so it cannot be read in blocks; download it")
        tag = next((str(facts[key]) for key in _TAGS if facts.get(key)), "")
        return {"files": 1, "bytes": int(facts["size"]), "tag": tag}


Location = Path | Remote


def locate(path: str | os.PathLike[str]) -> list[Location] | Location:
    """Return the location of a path or URL, or the locations that a pattern matches, in natural order."""
    text = os.fspath(path)
    if is_url(text) and not text.startswith("file://"):
        remote = Remote(text)
        magic = "*[" if text.startswith("http") else "*?["
        return in_order(remote.glob(), text) if any(c in text for c in magic) else remote
    if text.startswith("file://"):
        text = urllib.request.url2pathname(urllib.parse.urlsplit(text).path)
    if glob.has_magic(text) and not os.path.exists(text):
        return in_order([Path(found) for found in glob.glob(text, recursive=True)], text)
    return Path(text)


def is_url(text: object) -> bool:
    """Return True for the text of a URL, which pathlib would spoil."""
    # A scheme has two letters at least: C:// is a drive.
    return isinstance(text, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+(::|://)", text) is not None


def in_order(found: Iterable[Any], pattern: str) -> list[Location]:
    """Sort the matches of a pattern, ``part-2`` before ``part-10``."""
    ordered = sorted(found, key=lambda path: [natural_order(Path(part)) for part in Path(str(path)).parts])
    if not ordered:
        raise FileNotFoundError(f"no file matches {pattern}")
    return ordered
