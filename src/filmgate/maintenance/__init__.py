"""Work on stored data outside the request path: retention, deletion of tenants, backup and restore."""
