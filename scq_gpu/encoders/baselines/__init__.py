"""Methods of others behind the interface of the encoders, to compare OnE and OgE with."""
