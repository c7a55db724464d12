"""POST /api/v1/notifications: publish many at once."""
