"""
Data frames, pipelines, files
=============================

Encoders are scikit-learn estimators. They work in pipelines, take and return data frames, and can be tuned by a grid
search. Models and indexes are saved to separate files.
"""

import tempfile
from pathlib import Path

from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

import scq_gpu as scq

# %%
# A data frame in, a data frame out
# ---------------------------------
# The frame's index holds a key for each row. The encoder stores the names of the columns and rejects others.

frame, digit = load_digits(return_X_y=True, as_frame=True)
frame = frame.astype("float32").set_axis(frame.index + 5000)
base, queries = frame[:-300], frame[-300:]

pipeline = make_pipeline(Normalizer(), scq.OgE(n_bits=32, preserve="classes", random_state=0))
pipeline.set_output(transform="pandas")
signs = pipeline.fit_transform(base)
signs.iloc[:4, :10]

# %%
# Codes with keys
# ---------------
# ``transform`` returns signs, one column per bit, for other estimators. `scq_gpu.pack` packs them into bytes, and the
# search returns the frame's keys.

codes = scq.pack(signs.to_numpy())
index = scq.HammingIndex(codes, n_bits=32, ids=base.index.to_numpy())
query_codes = scq.pack(pipeline.transform(queries).to_numpy())
distances, keys = index.search(query_codes, k=5)
print("nearest to row", queries.index[0], "are", keys[0].tolist())
print("at distances", distances[0].tolist())

# %%
# Files
# -----
# A model file holds the encoder with the names of the columns. The ``Normalizer`` has no state to save. An index file
# holds codes and keys.

with tempfile.TemporaryDirectory() as folder:
    model_file = Path(folder, "encoder.safetensors")
    index_file = Path(folder, "index.safetensors")
    pipeline[-1].save(model_file)
    index.save(index_file)
    for file in (model_file, index_file):
        print(f"{file.name}: {file.stat().st_size} bytes")
    encoder = scq.load(model_file)
    again = scq.HammingIndex.load(index_file)
    query_codes = encoder.encode(pipeline[:-1].transform(queries))
    _, keys_again = again.search(query_codes, k=5)
print("the same answers:", (keys_again == keys).all())

# %%
# A grid search
# -------------
# Bits are features too. If rows have labels, a nearest-neighbor classifier on Hamming distances, scored by
# cross-validation, is a quick way to choose parameters. Pixels at the border hardly vary, so ``n_components`` drops the
# axes that carry almost no variance.

encoder = scq.OgE(n_components=48, preserve="classes", random_state=0)
classifier = KNeighborsClassifier(5, metric="hamming")
tried = make_pipeline(Normalizer(), encoder, classifier)
search = GridSearchCV(tried, {"oge__n_bits": [4, 8, 16, 32]}, cv=3)
results = search.fit(base, digit[:-300]).cv_results_

lengths = results["param_oge__n_bits"].tolist()
accuracy = dict(zip(lengths, results["mean_test_score"], strict=True))
scq.plots.bits_curve(accuracy, metric="accuracy")
