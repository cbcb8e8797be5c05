"""What milepost.client is made of. Needs the packages of `pip install milepost[client]`."""
