//! The options of runtime filters, `runtime_filter.*` in SQL `SET`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use datafusion::common::{DataFusionError, Result, config_err, extensions_options};
use datafusion::config::{ConfigExtension, ConfigField, ConfigOptions, Visit};
use runtime_filter_exchange::{ForcedForm, SizeRule};

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

        /// Share of non-matching keys that a filter may let pass: `auto` for the share at which
        /// filter and false positives together are expected to move the fewest bytes (0.01 where
        /// statistics are missing), or a number in 0..1.
        pub target_fpp: TargetFpp, default = TargetFpp::Auto

        /// Up to this many distinct keys may be sent as they are instead of as a Bloom filter:
        /// with a fixed `target_fpp` they are, with `auto` where that moves fewer bytes.
        pub max_exact_keys: usize, default = 1024

        /// A filter is placed and sent if its expected traffic is at most
        /// (1 - min_saving) of the bytes that it is to thin out, in 0..1. A margin for
        /// estimates that are wrong; below it `target_fpp` decides on the size.
        pub min_saving: f64, default = 0.5

        /// A probe switches itself off for a while when it keeps nearly all rows.
        pub adaptive: bool, default = true

        /// A probe that keeps more than this share of its rows switches itself off, in 0..=1.
        pub max_keep_rate: f64, default = 0.95

        /// For benchmarks: forms that filters are sent in whatever they cost, as
        /// `filter=form` pairs with commas. A filter is a number of the plan or `*` for the
        /// others, a form a false positive share, `keys` or `nothing`.
        pub forced_sizes: ForcedSizes, default = ForcedSizes::default()

        /// Bounds of the build keys, and their values if they are few, reach Parquet
        /// scans directly below a probe, which then skip files, row groups and pages.
        pub storage_pruning: bool, default = true

        /// A filter expected to keep at most a quarter of the rows of such a scan also
        /// works in it, if the query has no condition there and the other columns are
        /// larger than the keys: they are decoded only for rows that pass. Needs
        /// `storage_pruning`.
        pub late_materialization: bool, default = false

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
        if let TargetFpp::Fixed(fpp) = self.target_fpp
            && !open_unit(fpp)
        {
            return config_err!(
                "runtime_filter.target_fpp must be 'auto' or lie between 0 and 1, but is {fpp}"
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

    /// How the form of `filter` is chosen.
    pub fn size_rule(&self, filter: u32) -> SizeRule {
        self.forced_sizes
            .rule(filter)
            .unwrap_or(match self.target_fpp {
                TargetFpp::Auto => SizeRule::Auto,
                TargetFpp::Fixed(_) => SizeRule::Fixed,
            })
    }

    /// The false positive share to aim at where the fewest bytes are not asked for or not known.
    pub fn fixed_fpp(&self) -> f64 {
        match self.target_fpp {
            TargetFpp::Auto => runtime_filter_core::sizing::DEFAULT_FPP,
            TargetFpp::Fixed(fpp) => fpp,
        }
    }

    /// [`Self::begin_timeout_ms`] as a duration.
    pub fn begin_timeout(&self) -> Duration {
        Duration::from_millis(self.begin_timeout_ms)
    }
}

/// The option `target_fpp`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum TargetFpp {
    /// What moves the fewest bytes.
    #[default]
    Auto,
    /// This share.
    Fixed(f64),
}

impl From<f64> for TargetFpp {
    fn from(fpp: f64) -> Self {
        Self::Fixed(fpp)
    }
}

impl fmt::Display for TargetFpp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(fpp) => fpp.fmt(f),
        }
    }
}

impl FromStr for TargetFpp {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Self::Auto);
        }
        match text.parse() {
            Ok(fpp) => Ok(Self::Fixed(fpp)),
            Err(_) => {
                config_err!("target_fpp takes 'auto' or a number between 0 and 1, not '{text}'")
            }
        }
    }
}

/// The option `forced_sizes`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ForcedSizes(Vec<(Option<u32>, ForcedForm)>);

impl ForcedSizes {
    /// How the form of `filter` is chosen, if it is forced.
    pub fn rule(&self, filter: u32) -> Option<SizeRule> {
        let form = |id| self.0.iter().find(|(of, _)| *of == id);
        form(Some(filter))
            .or_else(|| form(None))
            .map(|(_, form)| SizeRule::Forced(*form))
    }
}

impl fmt::Display for ForcedSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (filter, form)) in self.0.iter().enumerate() {
            f.write_str(if i > 0 { "," } else { "" })?;
            match filter {
                Some(id) => write!(f, "{id}=")?,
                None => f.write_str("*=")?,
            }
            match form {
                ForcedForm::Bloom(fpp) => fpp.fmt(f)?,
                ForcedForm::Keys => f.write_str("keys")?,
                ForcedForm::Nothing => f.write_str("nothing")?,
            }
        }
        Ok(())
    }
}

impl FromStr for ForcedSizes {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        let pair = |pair: &str| {
            let (filter, form) = pair.split_once('=')?;
            let filter = match filter.trim() {
                "*" => None,
                id => Some(id.parse().ok()?),
            };
            let form = match form.trim() {
                "keys" => ForcedForm::Keys,
                "nothing" => ForcedForm::Nothing,
                fpp => ForcedForm::Bloom(fpp.parse().ok()?),
            };
            Some((filter, form))
        };
        let pairs = text.split(',').filter(|pair| !pair.trim().is_empty());
        match pairs.map(pair).collect() {
            Some(pairs) => Ok(Self(pairs)),
            None => config_err!(
                "forced_sizes takes pairs such as '*=0.01,2=keys,3=nothing', not '{text}'"
            ),
        }
    }
}

macro_rules! text_option {
    ($type:ty) => {
        impl ConfigField for $type {
            fn visit<V: Visit>(&self, visitor: &mut V, key: &str, description: &'static str) {
                visitor.some(key, self, description);
            }

            fn set(&mut self, _: &str, value: &str) -> Result<()> {
                *self = value.parse()?;
                Ok(())
            }

            fn reset(&mut self, _: &str) -> Result<()> {
                *self = Self::default();
                Ok(())
            }
        }
    };
}

text_option!(TargetFpp);
text_option!(ForcedSizes);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn set(options: &mut RuntimeFilterOptions, key: &str, value: &str) -> Result<()> {
        datafusion::config::ExtensionOptions::set(options, key, value)
    }

    #[test]
    fn a_target_is_auto_or_a_number() {
        let mut options = RuntimeFilterOptions::default();
        assert_eq!(options.target_fpp, TargetFpp::Auto);
        for (text, target) in [
            ("0.25", TargetFpp::Fixed(0.25)),
            ("AUTO", TargetFpp::Auto),
            ("1e-3", TargetFpp::Fixed(0.001)),
        ] {
            set(&mut options, "target_fpp", text).unwrap();
            assert_eq!(options.target_fpp, target);
            assert_eq!(target.to_string().parse::<TargetFpp>().unwrap(), target);
            options.validate().unwrap();
        }
        let error = set(&mut options, "target_fpp", "often")
            .unwrap_err()
            .to_string();
        assert!(error.contains("often") && error.contains("auto"), "{error}");
        for text in ["0", "1", "7", "-0.5", "NaN", "inf"] {
            set(&mut options, "target_fpp", text).unwrap();
            let error = options.validate().unwrap_err().to_string();
            assert!(error.contains("target_fpp"), "{text}: {error}");
        }
    }

    #[test]
    fn forced_sizes_name_a_filter_or_all_others() {
        let mut options = RuntimeFilterOptions::default();
        assert_eq!(options.forced_sizes.rule(0), None);
        let text = "*=0.01, 2=keys,3=nothing";
        set(&mut options, "forced_sizes", text).unwrap();
        let forced = options.forced_sizes.clone();
        assert_eq!(
            [0, 2, 3].map(|id| forced.rule(id).unwrap()),
            [
                ForcedForm::Bloom(0.01),
                ForcedForm::Keys,
                ForcedForm::Nothing
            ]
            .map(SizeRule::Forced)
        );
        assert_eq!(forced.to_string().parse::<ForcedSizes>().unwrap(), forced);
        set(&mut options, "forced_sizes", "").unwrap();
        assert_eq!(options.forced_sizes, ForcedSizes::default());
        for text in ["keys", "x=keys", "1=often", "1=keys;2=keys"] {
            assert!(set(&mut options, "forced_sizes", text).is_err(), "{text}");
        }
    }
}
