//! Network faults between the real ends of the exchange.
