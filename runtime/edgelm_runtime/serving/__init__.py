"""Many callers, one model: requests that join and leave a running batch."""
