//! The options of runtime filters, `runtime_filter.*` in SQL `SET`.

use std::time::Duration;

use datafusion::common::{Result, config_err, extensions_options};
use datafusion::config::{ConfigExtension, ConfigOptions};

extensions_options! {
    /// Options of runtime filters. SQL: `SET runtime_filter.<name> = <value>`,
    /// effective from the next query on.
    pub struct RuntimeFilterOptions {
        /// Place filters at all.
        pub enabled: bool, default = true

        /// Place a filter wherever it is legal, whatever the cost gate says, and
        /// keep it switched on. For tests and for looking.
        pub force: bool, default = false

        /// Milliseconds that the probes of one task wait for a verdict before they
        /// pass rows unfiltered. A later verdict is still picked up.
        pub wait_timeout_ms: u64, default = 1000

        /// The same where the build node sits in the stage of the join itself, so
        /// that its end may come late.
        pub in_stage_wait_ms: u64, default = 100

        /// Milliseconds that the start of a query waits for the workers to take
        /// part. The query then runs without filters.
        pub begin_timeout_ms: u64, default = 1000

        /// Bytes that one filter may have; at most 268435456.
        pub max_filter_bytes: usize, default = 16 * 1024 * 1024

        /// Share of non-matching keys that a filter may let pass, in 0..1.
        pub target_fpp: f64, default = 0.01

        /// Up to this many distinct keys are sent as they are instead of as a Bloom filter.
        pub max_exact_keys: usize, default = 1024

        /// A filter is placed and sent if its expected traffic is at most
        /// (1 - min_saving) of the bytes that it is to thin out, in 0..1.
        pub min_saving: f64, default = 0.5

        /// A probe switches itself off for a while when it keeps nearly all rows.
        pub adaptive: bool, default = true

        /// A probe that keeps more than this share of its rows switches itself off, in 0..=1.
        pub max_keep_rate: f64, default = 0.95

        /// Internal: the execution that a task belongs to. Set by the scope node.
        pub execution_id: String, default = String::new()
    }
}

impl ConfigExtension for RuntimeFilterOptions {
    const PREFIX: &'static str = "runtime_filter";
}

impl RuntimeFilterOptions {
    /// The options of a session, if they are registered there.
    pub fn from_config(config: &ConfigOptions) -> Option<&Self> {
        config.extensions.get::<Self>()
    }

    /// Whether every value is within its documented range.
    ///
    /// # Errors
    /// Names the first option that is not, and its range.
    pub fn validate(&self) -> Result<()> {
        let largest = runtime_filter_exchange::wire::MAX_FILTER_BYTES;
        let open_unit = |value: f64| value > 0.0 && value < 1.0;
        let closed_unit = |value: f64| (0.0..=1.0).contains(&value);
        if !open_unit(self.target_fpp) {
            return config_err!(
                "runtime_filter.target_fpp must lie between 0 and 1, but is {}",
                self.target_fpp
            );
        }
        if !closed_unit(self.min_saving) {
            return config_err!(
                "runtime_filter.min_saving must be 0 to 1, but is {}",
                self.min_saving
            );
        }
        if !closed_unit(self.max_keep_rate) {
            return config_err!(
                "runtime_filter.max_keep_rate must be 0 to 1, but is {}",
                self.max_keep_rate
            );
        }
        if !(32..=largest).contains(&self.max_filter_bytes) {
            return config_err!(
                "runtime_filter.max_filter_bytes must be 32 to {largest}, but is {}",
                self.max_filter_bytes
            );
        }
        Ok(())
    }

    /// [`Self::begin_timeout_ms`] as a duration.
    pub fn begin_timeout(&self) -> Duration {
        Duration::from_millis(self.begin_timeout_ms)
    }
}
