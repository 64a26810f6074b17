"""Room 2: may this request become a job? `Admission.accept` is the one function the API calls."""
