"""What waiting for a provider costs, as `filmgate bench managed` measures it."""
