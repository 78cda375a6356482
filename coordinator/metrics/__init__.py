"""What `sandhog serve` tells Prometheus: sessions (events), cluster (Redis at each scrape), served (both, as text)."""
