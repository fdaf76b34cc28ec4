"""Checks of scikit-learn that our estimators fail by design, and why."""

import sklearn

EXPECTED_FAILURES = {
    "check_array_api_same_namespace": "an encoder follows X to any namespace; that is the contract, and tested",
    "check_dtype_object": "object arrays are refused by name: numbers kept as objects are nearly always a mistake",
}
if sklearn.__version__.startswith("1.6."):
    EXPECTED_FAILURES["check_array_api_input"] = "scikit-learn 1.6 asks for array API 2023.12; we need that of 2024.12"
