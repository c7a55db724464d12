"""What one server takes on."""
