"""The object store on a local disk: encrypted files and signed links."""
