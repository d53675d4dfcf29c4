"""The routes that only llama-server has, as its own documentation describes them."""
