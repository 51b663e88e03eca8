//! Model checker of the exchange between coordinator and workers.
