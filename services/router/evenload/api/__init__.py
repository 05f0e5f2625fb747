"""What HTTP services of Evenload have in common: client keys, and errors in the API's form."""
