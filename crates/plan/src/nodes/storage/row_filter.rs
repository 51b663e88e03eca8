//! A runtime filter as a condition of a scan, which then decodes the other columns
//! only where the keys are among those of the build side.
//!
//! ```text
//!   ParquetSource: predicate = a > 1     ParquetSource: predicate = a > 1 AND
//!                                          runtime_filter_0(k), late materialization
//! ```
//!
//! The probe node above stays: a reader may leave a condition out that it cannot use.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{ArrayRef, BooleanArray, RecordBatch};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, Schema};
use datafusion::common::Result;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder};
use runtime_filter_core::{KeyHasher, RuntimeFilter};

use crate::nodes::adaptive::Adaptive;
use crate::nodes::metric::ScanRows;

/// A filter that keeps more of the rows than this is not evaluated for a while, and
/// neither is one expected to: short runs of rows are dear to decode one by one.
pub(super) const MAX_KEEP_RATE: f64 = 0.25;

/// What one partition has to say about the rows that one filter saw in its scan.
#[derive(Debug, Clone)]
struct RowCounts {
    rows_in: Count,
    rows_dropped: Count,
}

/// `true` for the rows whose keys may be among those of the build side.
#[derive(Debug)]
pub(super) struct RowFilterExpr {
    id: u32,
    filter: Arc<RuntimeFilter>,
    null_equals_null: bool,
    keys: Vec<Arc<dyn PhysicalExpr>>,
    counts: RowCounts,
    // Shared by the copies for each file. One partition reads one file at a time.
    work: Arc<Mutex<Work>>,
}

#[derive(Debug)]
struct Work {
    hasher: KeyHasher,
    hashes: Vec<u64>,
    adaptive: Adaptive,
}

impl RowFilterExpr {
    /// `filter` on the columns `keys`, counted in `metrics`. `None` if their types are
    /// none of a key.
    pub(super) fn new(
        id: u32,
        filter: Arc<RuntimeFilter>,
        null_equals_null: bool,
        keys: Vec<(Arc<dyn PhysicalExpr>, DataType)>,
        metrics: (&ExecutionPlanMetricsSet, usize),
        adaptive: bool,
    ) -> Option<Self> {
        let (keys, types): (Vec<_>, Vec<_>) = keys.into_iter().unzip();
        let hasher = KeyHasher::try_new(&types, filter.seed()).ok()?;
        let counter = |name: String| MetricBuilder::new(metrics.0).counter(name, metrics.1);
        Some(Self {
            id,
            filter,
            null_equals_null,
            keys,
            counts: RowCounts {
                rows_in: counter(ScanRows::In.name(id)),
                rows_dropped: counter(ScanRows::Dropped.name(id)),
            },
            work: Arc::new(Mutex::new(Work {
                hasher,
                hashes: vec![],
                adaptive: Adaptive::new(adaptive.then_some(MAX_KEEP_RATE)),
            })),
        })
    }

    fn keep(&self, batch: &RecordBatch) -> Result<BooleanBuffer> {
        let rows = batch.num_rows();
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        // A reader evaluates a condition on constants alone once, to see what it comes to.
        let trial = self.keys.iter().all(|key| key.is::<Literal>());
        if !trial && work.adaptive.skips(rows) {
            return Ok(BooleanBuffer::new_set(rows));
        }
        let columns: Vec<ArrayRef> = self
            .keys
            .iter()
            .map(|key| key.evaluate(batch)?.into_array(rows))
            .collect::<Result<_>>()?;
        let Work {
            hasher,
            hashes,
            adaptive,
        } = &mut *work;
        let Ok(validity) = hasher.hash_batch(&columns, hashes) else {
            // A column of another type than declared: on any doubt, pass.
            return Ok(BooleanBuffer::new_set(rows));
        };
        let mask = self
            .filter
            .keep_mask(hashes, validity.as_ref(), self.null_equals_null);
        if !trial {
            let kept = mask.count_set_bits();
            adaptive.observe(rows, kept);
            self.counts.rows_in.add(rows);
            self.counts.rows_dropped.add(rows - kept);
        }
        Ok(mask)
    }
}

impl fmt::Display for RowFilterExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<String> = self.keys.iter().map(ToString::to_string).collect();
        write!(f, "runtime_filter_{}({})", self.id, keys.join(", "))
    }
}

impl PartialEq for RowFilterExpr {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.filter, &other.filter)
            && self.null_equals_null == other.null_equals_null
            && self.keys == other.keys
    }
}

impl Eq for RowFilterExpr {}

impl Hash for RowFilterExpr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.filter).hash(state);
        self.keys.hash(state);
    }
}

impl PhysicalExpr for RowFilterExpr {
    fn data_type(&self, _: &Schema) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn nullable(&self, _: &Schema) -> Result<bool> {
        Ok(false)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let mask = BooleanArray::new(self.keep(batch)?, None);
        Ok(ColumnarValue::Array(Arc::new(mask)))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        self.keys.iter().collect()
    }

    fn with_new_children(
        self: Arc<Self>,
        keys: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        Ok(Arc::new(Self {
            id: self.id,
            filter: Arc::clone(&self.filter),
            null_equals_null: self.null_equals_null,
            keys,
            counts: self.counts.clone(),
            work: Arc::clone(&self.work),
        }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
