//! Bounds of a filter in the Parquet scan below its probe node, so that files, row
//! groups and pages that hold no key are not read at all.
//!
//! ```text
//!   before                        after
//!   RuntimeFilterProbeExec        RuntimeFilterProbeExec
//!     FilterExec                    FilterExec
//!       DataSourceExec                DataSourceExec
//!         FileScanConfig                PrunedScan: filter 0 on column 3
//!           ParquetSource                 FileScanConfig
//!                                           ParquetSource
//! ```
//!
//! A [`PrunedScan`] holds nothing of an execution. Each partition that it opens reads
//! through a copy of the scan of its own, whose predicate has two dynamic filters more
//! for each runtime filter: bounds in one, listed values in the other, as the reader
//! would otherwise take them for one that it can do nothing with. The files that
//! partitions hand on to each other stay those of the one `DataSourceExec`.
//!
//! A partition is opened when it is first polled: the probe above has then waited for
//! its verdict. If the filter is there and few rows are expected to pass it, it is a
//! condition of the scan as well (late materialization): the other columns are decoded
//! for the rows that pass.
//!
//! What the scan drops, the probe above would have dropped: both know the same keys,
//! and only operators lie between that treat each row by itself.

mod row_filter;

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, SchemaRef, TimeUnit};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, ScalarValue, Statistics};
use datafusion::config::ConfigOptions;
use datafusion::datasource::physical_plan::{
    FileGroup, FileScanConfig, FileScanConfigBuilder, ParquetSource,
};
use datafusion::datasource::source::{DataSource, DataSourceExec, OpenArgs};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{
    BinaryExpr, Column, DynamicFilterPhysicalExpr, in_list, lit,
};
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr, conjunction};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_expr_common::sort_expr::LexOrdering;
use datafusion::physical_plan::execution_plan::SchedulingType;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::proto::ExecutionPlanEncodeCtx;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayFormatType, ExecutionPlan, ReplaceChildrenOptions,
};
use datafusion::prelude::SessionConfig;
use datafusion_distributed::DistributedLeafExec;
use datafusion_proto::protobuf::PhysicalPlanNode;
use futures::{Stream, StreamExt};
use runtime_filter_core::{ColumnBounds, FilterKind, KeyValue, RuntimeFilter};
use runtime_filter_exchange::{Execution, Verdict};
use tokio::sync::watch;

use self::row_filter::{MAX_KEEP_RATE, RowFilterExpr};
use super::context::execution;
use super::{RuntimeFilterBuildExec, RuntimeFilterProbeExec};
use crate::config::RuntimeFilterOptions;
use crate::placement::{column, is_transparent, through_filter, through_projection};
use crate::report::Storage;

/// `plan`, as it will run in this process, with every scan pruned by the probes above
/// it that can reach it. Without effect if the options say so.
///
/// To be called once the scans are spread over tasks: what spreads them wants to see
/// the original ones.
pub fn prune_scans(
    plan: Arc<dyn ExecutionPlan>,
    config: &SessionConfig,
) -> Result<Arc<dyn ExecutionPlan>> {
    match RuntimeFilterOptions::from_config(config.options()) {
        Some(options) => prune_scans_by(plan, options),
        None => Ok(plan),
    }
}

pub(crate) fn prune_scans_by(
    plan: Arc<dyn ExecutionPlan>,
    options: &RuntimeFilterOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    if !options.enabled || !options.storage_pruning {
        return Ok(plan);
    }
    let pruned = plan.transform_up(|node| {
        let Some(probe) = node.downcast_ref::<RuntimeFilterProbeExec>() else {
            return Ok(Transformed::no(node));
        };
        let filter = |keys, spared| ScanFilter {
            id: probe.spec().id,
            null_equals_null: probe.spec().null_equals_null,
            keys,
            spared,
        };
        match prune_below(probe.input(), probe.keys().to_vec(), &filter)? {
            Some(input) => Ok(Transformed::yes(with_child(&node, input)?)),
            None => Ok(Transformed::no(node)),
        }
    })?;
    Ok(pruned.data)
}

fn with_child(
    node: &Arc<dyn ExecutionPlan>,
    child: Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    Arc::clone(node).replace_children(
        vec![child],
        ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
    )
}

/// `node` with the scan below it pruned by `keys`, columns of `node`. `None` if there
/// is no such scan, or anything unlisted in between.
fn prune_below(
    node: &Arc<dyn ExecutionPlan>,
    keys: Vec<usize>,
    filter: &dyn Fn(Vec<ScanKey>, Option<f64>) -> ScanFilter,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    // A limit takes the first rows that come, and those would be others.
    if node.fetch().is_some() {
        return Ok(None);
    }
    if let Some(exec) = node.downcast_ref::<DataSourceExec>() {
        let pruned = PrunedScan::over(exec.data_source(), &keys, filter)
            .map(|source| exec.clone().with_data_source(Arc::new(source)));
        // Somebody may have declared other partitions than the source has.
        let partitions = |exec: &DataSourceExec| exec.properties().partitioning.partition_count();
        return Ok(pruned
            .filter(|pruned| partitions(pruned) == partitions(exec))
            .map(|pruned| Arc::new(pruned) as _));
    }
    let keys = if let Some(projection) = node.downcast_ref::<ProjectionExec>() {
        match projection.expr().iter().any(|item| is_volatile(&item.expr)) {
            true => None,
            false => through_projection(projection, &keys),
        }
    } else if let Some(filter) = node.downcast_ref::<FilterExec>() {
        match is_volatile(filter.predicate()) {
            true => None,
            false => through_filter(filter, &keys),
        }
    } else {
        let ours = node.is::<RuntimeFilterProbeExec>() || node.is::<RuntimeFilterBuildExec>();
        (ours || is_transparent(node)).then_some(keys)
    };
    let children = node.children();
    let (Some(keys), [child]) = (keys, children.as_slice()) else {
        return Ok(None);
    };
    match prune_below(child, keys, filter)? {
        Some(child) => Ok(Some(with_child(node, child)?)),
        None => Ok(None),
    }
}

/// Whether the scan directly below a probe left rows out that the probe would have
/// dropped: it then drops few itself. Conditions of the query count, too.
pub(super) fn has_pruned(probe: &RuntimeFilterProbeExec) -> bool {
    let mut node = probe.input();
    while let [child] = node.children().as_slice() {
        node = child;
    }
    let Some(scan) = node.downcast_ref::<DataSourceExec>() else {
        return false;
    };
    let mut storage = Storage::default();
    storage.add(&scan.metrics().unwrap_or_default());
    scan.data_source().is::<PrunedScan>() && storage.has_pruned()
}

/// Bytes of the Parquet files, or ranges of files, that `node` scans; 0 if it is no such
/// scan.
pub(crate) fn file_bytes(node: &Arc<dyn ExecutionPlan>) -> u64 {
    if let Some(spread) = node.downcast_ref::<DistributedLeafExec>() {
        return file_bytes(spread.original());
    }
    let Some(exec) = node.downcast_ref::<DataSourceExec>() else {
        return 0;
    };
    let source = exec.data_source();
    let scan = match source.downcast_ref::<PrunedScan>() {
        Some(pruned) => pruned.scan.as_ref(),
        None => match source.downcast_ref::<FileScanConfig>() {
            Some(scan) => scan,
            None => return 0,
        },
    };
    if !scan.file_source().is::<ParquetSource>() {
        return 0;
    }
    let files = scan.file_groups.iter().flat_map(FileGroup::iter);
    let bytes = files.map(|file| match &file.range {
        Some(range) => range.end.abs_diff(range.start),
        None => file.object_meta.size,
    });
    bytes.sum()
}

/// A key column of a filter, as a column of a scan.
#[derive(Debug, Clone)]
struct ScanKey {
    /// In the output of the scan.
    column: Column,
    data_type: DataType,
    /// Least and greatest value of the column in all files of the scan, if known.
    extent: Option<(ScalarValue, ScalarValue)>,
}

impl ScanKey {
    /// Most distinct values that the column can have, if known.
    fn possible_values(&self) -> Option<usize> {
        let (min, max) = self.extent.as_ref()?;
        max.distance(min)?.checked_add(1)
    }
}

/// A runtime filter and the columns of a scan that it is about.
#[derive(Debug, Clone)]
struct ScanFilter {
    id: u32,
    null_equals_null: bool,
    keys: Vec<ScanKey>,
    /// Bytes of the other columns that the scan decodes, by those of the keys. `None` if
    /// the sizes are not known.
    spared: Option<f64>,
}

impl ScanFilter {
    /// Whether `filter` is expected to keep few enough rows for decoding the other
    /// columns row by row.
    fn is_strict(&self, filter: &RuntimeFilter) -> bool {
        // Of a composite key there are at least as many as values of any of its columns.
        let possible = self.keys.iter().filter_map(ScanKey::possible_values).max();
        let keys = filter.distinct_keys() as f64;
        possible.is_some_and(|possible| keys <= possible as f64 * MAX_KEEP_RATE)
    }

    fn row_filter(
        &self,
        filter: Arc<RuntimeFilter>,
        metrics: (&ExecutionPlanMetricsSet, usize),
        late: LateMaterialization,
    ) -> Option<RowFilterExpr> {
        let key = |key: &ScanKey| -> (Arc<dyn PhysicalExpr>, DataType) {
            (Arc::new(key.column.clone()), key.data_type.clone())
        };
        let keys = self.keys.iter().map(key).collect();
        RowFilterExpr::new(
            self.id,
            filter,
            self.null_equals_null,
            keys,
            metrics,
            late.adaptive,
        )
    }
}

/// A scan of Parquet files that reads only what may hold keys of its runtime filters.
#[derive(Debug, Clone)]
struct PrunedScan {
    scan: Arc<FileScanConfig>,
    /// The scan without its files, of which a partition needs its own share alone.
    template: Arc<FileScanConfig>,
    filters: Vec<ScanFilter>,
}

impl PrunedScan {
    /// `source` pruned by a filter on `keys`, columns of its output. `None` if it is
    /// not a scan of Parquet files, or a key is not plainly a column of them.
    fn over(
        source: &Arc<dyn DataSource>,
        keys: &[usize],
        filter: &dyn Fn(Vec<ScanKey>, Option<f64>) -> ScanFilter,
    ) -> Option<Self> {
        let mut pruned = match source.downcast_ref::<Self>() {
            Some(pruned) => pruned.clone(),
            None => Self::of_files(source.downcast_ref::<FileScanConfig>()?),
        };
        let scan = &pruned.scan;
        scan.file_source().downcast_ref::<ParquetSource>()?;
        let schema = scan.projected_schema().ok()?;
        let table = scan.file_source().table_schema().table_schema();
        let statistics = scan.statistics();
        let key = |key: &usize| {
            let index = match scan.file_source().projection() {
                Some(projection) => column(&projection.as_ref().get(*key)?.expr)?,
                None => *key,
            };
            let in_table = table.fields().get(index)?;
            let output = schema.fields().get(*key)?;
            // The engine looks the column up by this name.
            let named_so = |field: &&Arc<arrow::datatypes::Field>| field.name() == in_table.name();
            let unique = table.fields().iter().filter(named_so).count() == 1;
            (unique && in_table.data_type() == output.data_type()).then(|| ScanKey {
                column: Column::new(output.name(), *key),
                data_type: output.data_type().clone(),
                extent: statistics.column_statistics.get(index).and_then(|column| {
                    let min = column.min_value.get_value()?.clone();
                    Some((min, column.max_value.get_value()?.clone()))
                }),
            })
        };
        let spared = spared_by_key_bytes(scan, &statistics, keys);
        let keys = keys.iter().map(key).collect::<Option<_>>()?;
        pruned.filters.push(filter(keys, spared));
        Some(pruned)
    }

    fn of_files(scan: &FileScanConfig) -> Self {
        let mut template = scan.clone();
        template.file_groups = vec![FileGroup::default(); scan.file_groups.len()];
        Self {
            scan: Arc::new(scan.clone()),
            template: Arc::new(template),
            filters: vec![],
        }
    }

    fn with_scan(&self, scan: &Arc<dyn DataSource>) -> Option<Arc<dyn DataSource>> {
        let mut pruned = Self::of_files(scan.downcast_ref()?);
        pruned.filters.clone_from(&self.filters);
        Some(Arc::new(pruned))
    }

    /// The scan for `partition` with the filters in its predicate that are there, and
    /// dynamic filters for what comes later. `None` if the source does not take them.
    fn open_partition(
        &self,
        partition: usize,
        execution: &Execution,
        config: &ConfigOptions,
    ) -> Result<Option<PartitionScan>> {
        let mut scan = self.template.as_ref().clone();
        match (
            scan.file_groups.get_mut(partition),
            self.scan.file_groups.get(partition),
        ) {
            (Some(own), Some(files)) => own.clone_from(files),
            _ => return Ok(None),
        }
        let schema = scan.projected_schema()?;
        let mut pending = Pending {
            filters: vec![],
            seed: execution.settings().seed,
            schema: Arc::clone(&schema),
        };
        let mut dynamic: Vec<Arc<dyn PhysicalExpr>> = vec![];
        for filter in &self.filters {
            let filters = DynamicFilters::new(filter);
            dynamic.push(Arc::clone(&filters.bounds) as _);
            dynamic.push(Arc::clone(&filters.values) as _);
            let verdict = execution.verdict(filter.id);
            pending.filters.push((verdict, filters));
        }
        let arrived = pending.take_up_verdicts();
        let metrics = scan.metrics();
        let mut predicates: Vec<Arc<dyn PhysicalExpr>> = vec![];
        if let Some(late) = LateMaterialization::from_config(config) {
            // The reader takes all conditions or none, and those of the query are dearer to
            // evaluate one by one than on batches.
            let alone = scan.file_source().filter().is_none();
            for (of, filter) in &arrived {
                if late.pays(of, filter, alone) {
                    let metrics = (&metrics, partition);
                    let filter = of.row_filter(Arc::clone(filter), metrics, late);
                    predicates.extend(filter.map(|filter| Arc::new(filter) as _));
                }
            }
        }
        // Whether the source also drops single rows by its predicate is otherwise the
        // session's choice (`parquet.pushdown_filters`): the probe drops them in any case.
        if !predicates.is_empty()
            && let Some(source) = scan.file_source().downcast_ref::<ParquetSource>()
        {
            let source = source.clone().with_pushdown_filters(true);
            scan = FileScanConfigBuilder::from(scan)
                .with_source(Arc::new(source))
                .build();
        }
        predicates.append(&mut dynamic);
        let pushed = scan.try_pushdown_filters(predicates, config)?;
        let scan = pushed.updated_node;
        Ok(scan.map(|scan| PartitionScan { scan, pending }))
    }
}

/// Bytes in memory of the columns that `scan` puts out, except `keys` of them, by the bytes of those.
/// `None` if it computes anything, or if a size is not known.
fn spared_by_key_bytes(
    scan: &FileScanConfig,
    statistics: &Statistics,
    keys: &[usize],
) -> Option<f64> {
    let width = scan.projected_schema().ok()?.fields().len();
    let projection = scan.file_source().projection();
    let bytes = |output: usize| -> Option<f64> {
        let index = match projection {
            Some(projection) => column(&projection.as_ref().get(output)?.expr)?,
            None => output,
        };
        let column = statistics.column_statistics.get(index)?;
        Some(*column.byte_size.get_value()? as f64)
    };
    let (mut of_keys, mut of_others) = (0.0, 0.0);
    for output in 0..width {
        match keys.contains(&output) {
            true => of_keys += bytes(output)?,
            false => of_others += bytes(output)?,
        }
    }
    (of_keys > 0.0).then(|| of_others / of_keys)
}

/// A scan whose other columns are smaller than so many times its keys decodes them for all rows:
/// to look keys up twice cannot pay if no more than they would be spared.
const MIN_SPARED: f64 = 1.0;

/// When a filter becomes a condition of a scan.
#[derive(Debug, Clone, Copy)]
struct LateMaterialization {
    /// Wherever it can.
    always: bool,
    /// A filter that keeps many rows after all is left out for a while.
    adaptive: bool,
}

impl LateMaterialization {
    fn from_config(config: &ConfigOptions) -> Option<Self> {
        let options = RuntimeFilterOptions::from_config(config)?;
        options.late_materialization.then_some(Self {
            always: options.force,
            adaptive: options.adaptive && !options.force,
        })
    }

    /// Whether that pays. `alone`: the scan has no condition of the query.
    fn pays(self, of: &ScanFilter, filter: &RuntimeFilter, alone: bool) -> bool {
        let spares = of.spared.is_some_and(|spared| spared >= MIN_SPARED);
        // Without keys the bounds say all.
        filter.kind() != FilterKind::Empty
            && (self.always || alone && spares && of.is_strict(filter))
    }
}

/// One partition's copy of a scan, and what sets the dynamic filters in its predicate.
struct PartitionScan {
    scan: Arc<dyn DataSource>,
    pending: Pending,
}

/// The filters of one partition whose verdicts have not come yet.
struct Pending {
    filters: Vec<(VerdictReceiver, DynamicFilters)>,
    seed: u64,
    schema: SchemaRef,
}

impl Pending {
    /// Takes up the verdicts that are there, and returns the filters among them.
    /// Whatever is wrong with one, the scan then reads more than it must, and no row
    /// less.
    fn take_up_verdicts(&mut self) -> Vec<(ScanFilter, Arc<RuntimeFilter>)> {
        let mut arrived = vec![];
        let (seed, schema) = (self.seed, &self.schema);
        self.filters.retain_mut(|(verdict, filters)| {
            let Some(decided) = verdict.borrow_and_update().clone() else {
                // Without a sender none will ever come.
                return verdict.has_changed().is_ok();
            };
            if let Verdict::Filter(filter) = decided
                && filter.seed() == seed
            {
                let _ = filters.publish(&filter, schema);
                arrived.push((filters.of.clone(), filter));
            }
            filters.complete();
            false
        });
        arrived
    }
}

/// The two dynamic filters that one partition has for one runtime filter.
#[derive(Debug)]
struct DynamicFilters {
    of: ScanFilter,
    bounds: Arc<DynamicFilterPhysicalExpr>,
    values: Arc<DynamicFilterPhysicalExpr>,
}

impl DynamicFilters {
    fn new(of: &ScanFilter) -> Self {
        let columns = || -> Vec<Arc<dyn PhysicalExpr>> {
            let column = |key: &ScanKey| Arc::new(key.column.clone()) as _;
            of.keys.iter().map(column).collect()
        };
        Self {
            of: of.clone(),
            bounds: Arc::new(DynamicFilterPhysicalExpr::new(columns(), lit(true))),
            values: Arc::new(DynamicFilterPhysicalExpr::new(columns(), lit(true))),
        }
    }

    fn publish(&self, filter: &RuntimeFilter, schema: &SchemaRef) -> Result<()> {
        if let Some(bounds) = bounds_predicate(&self.of, filter) {
            self.bounds.update(bounds)?;
        }
        if let Some(values) = values_predicate(&self.of, filter, schema)? {
            self.values.update(values)?;
        }
        Ok(())
    }

    fn complete(&self) {
        self.bounds.mark_complete();
        self.values.mark_complete();
    }
}

/// Whether rows with a NULL key may have a partner. Then nothing is pruned: a file may
/// not say how many NULLs it has, and the engine takes that for none.
fn keeps_nulls(of: &ScanFilter, filter: &RuntimeFilter) -> bool {
    of.null_equals_null && filter.has_null_key()
}

/// `k >= min AND k <= max` for each key column of which that says something.
fn bounds_predicate(of: &ScanFilter, filter: &RuntimeFilter) -> Option<Arc<dyn PhysicalExpr>> {
    if keeps_nulls(of, filter) {
        return None;
    }
    if filter.kind() == FilterKind::Empty {
        return Some(lit(false));
    }
    let bounds = filter.bounds().filter(|b| b.len() == of.keys.len())?;
    let mut parts: Vec<Arc<dyn PhysicalExpr>> = vec![];
    for (key, bounds) in of.keys.iter().zip(bounds) {
        let Some((min, max)) = bounds.range() else {
            continue;
        };
        let (Some(min), Some(max)) = (scalar(min, &key.data_type), scalar(max, &key.data_type))
        else {
            continue;
        };
        let covered =
            |(least, greatest): &(ScalarValue, ScalarValue)| min <= *least && *greatest <= max;
        if key.extent.as_ref().is_some_and(covered) {
            continue;
        }
        let compare = |operator, bound| -> Arc<dyn PhysicalExpr> {
            let column = Arc::new(key.column.clone());
            Arc::new(BinaryExpr::new(column, operator, lit(bound)))
        };
        parts.push(compare(Operator::GtEq, min));
        parts.push(compare(Operator::LtEq, max));
    }
    (!parts.is_empty()).then(|| conjunction(parts))
}

/// `k IN (...)`, for a key of one column and few values.
fn values_predicate(
    of: &ScanFilter,
    filter: &RuntimeFilter,
    schema: &SchemaRef,
) -> Result<Option<Arc<dyn PhysicalExpr>>> {
    let ([key], Some([ColumnBounds::Values(values)])) = (of.keys.as_slice(), filter.bounds())
    else {
        return Ok(None);
    };
    // One value is a range already.
    if keeps_nulls(of, filter) || values.len() < 2 {
        return Ok(None);
    }
    let values: Option<Vec<Arc<dyn PhysicalExpr>>> = values
        .iter()
        .map(|value| Some(lit(scalar(value, &key.data_type)?)))
        .collect();
    match values {
        Some(values) => in_list(Arc::new(key.column.clone()), values, &false, schema).map(Some),
        None => Ok(None),
    }
}

/// A key value as one of `data_type`; `None` if it cannot be one.
fn scalar(value: &KeyValue, data_type: &DataType) -> Option<ScalarValue> {
    use ScalarValue as S;
    let text = || match value {
        KeyValue::Bytes(bytes) => String::from_utf8(bytes.clone()).ok(),
        KeyValue::Int(_) => None,
    };
    let bytes = || match value {
        KeyValue::Bytes(bytes) => Some(bytes.clone()),
        KeyValue::Int(_) => None,
    };
    let int = match value {
        KeyValue::Int(int) => Some(*int),
        KeyValue::Bytes(_) => None,
    };
    let wide = || int.and_then(|int| i64::try_from(int).ok());
    let narrow = || int.and_then(|int| i32::try_from(int).ok());
    Some(match data_type {
        DataType::Int8 => S::Int8(Some(int?.try_into().ok()?)),
        DataType::Int16 => S::Int16(Some(int?.try_into().ok()?)),
        DataType::Int32 => S::Int32(Some(narrow()?)),
        DataType::Int64 => S::Int64(Some(wide()?)),
        DataType::UInt8 => S::UInt8(Some(int?.try_into().ok()?)),
        DataType::UInt16 => S::UInt16(Some(int?.try_into().ok()?)),
        DataType::UInt32 => S::UInt32(Some(int?.try_into().ok()?)),
        DataType::UInt64 => S::UInt64(Some(int?.try_into().ok()?)),
        DataType::Date32 => S::Date32(Some(narrow()?)),
        DataType::Decimal32(precision, scale) => S::Decimal32(Some(narrow()?), *precision, *scale),
        DataType::Decimal64(precision, scale) => S::Decimal64(Some(wide()?), *precision, *scale),
        DataType::Decimal128(precision, scale) => S::Decimal128(Some(int?), *precision, *scale),
        DataType::Timestamp(unit, zone) => {
            let (value, zone) = (Some(wide()?), zone.clone());
            match unit {
                TimeUnit::Second => S::TimestampSecond(value, zone),
                TimeUnit::Millisecond => S::TimestampMillisecond(value, zone),
                TimeUnit::Microsecond => S::TimestampMicrosecond(value, zone),
                TimeUnit::Nanosecond => S::TimestampNanosecond(value, zone),
            }
        }
        DataType::Utf8 => S::Utf8(Some(text()?)),
        DataType::LargeUtf8 => S::LargeUtf8(Some(text()?)),
        DataType::Utf8View => S::Utf8View(Some(text()?)),
        DataType::Binary => S::Binary(Some(bytes()?)),
        DataType::LargeBinary => S::LargeBinary(Some(bytes()?)),
        DataType::BinaryView => S::BinaryView(Some(bytes()?)),
        _ => return None,
    })
}

impl DataSource for PrunedScan {
    fn open(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.open_with_args(OpenArgs::new(partition, context))
    }

    fn open_with_args(&self, args: OpenArgs) -> Result<SendableRecordBatchStream> {
        Ok(Box::pin(PrunedStream {
            schema: self.scan.projected_schema()?,
            state: State::Unopened(Box::new((self.clone(), args))),
        }))
    }

    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.scan.fmt_as(t, f)?;
        if t != DisplayFormatType::TreeRender {
            let ids: Vec<u32> = self.filters.iter().map(|filter| filter.id).collect();
            write!(f, ", runtime_filters={ids:?}")?;
        }
        Ok(())
    }

    fn repartitioned(
        &self,
        partitions: usize,
        min_size: usize,
        ordering: Option<LexOrdering>,
    ) -> Result<Option<Arc<dyn DataSource>>> {
        let scan = self.scan.repartitioned(partitions, min_size, ordering)?;
        Ok(scan.and_then(|scan| self.with_scan(&scan)))
    }

    fn output_partitioning(&self) -> Partitioning {
        self.scan.output_partitioning()
    }

    fn eq_properties(&self) -> EquivalenceProperties {
        self.scan.eq_properties()
    }

    fn scheduling_type(&self) -> SchedulingType {
        self.scan.scheduling_type()
    }

    fn partition_statistics(&self, partition: Option<usize>) -> Result<Arc<Statistics>> {
        self.scan.partition_statistics(partition)
    }

    // A limit below the filters would count rows that they drop.
    fn with_fetch(&self, _: Option<usize>) -> Option<Arc<dyn DataSource>> {
        None
    }

    fn fetch(&self) -> Option<usize> {
        self.scan.fetch()
    }

    fn metrics(&self) -> ExecutionPlanMetricsSet {
        self.scan.metrics()
    }

    // Its columns are numbered as they are.
    fn try_swapping_with_projection(
        &self,
        _: &ProjectionExprs,
    ) -> Result<Option<Arc<dyn DataSource>>> {
        Ok(None)
    }

    fn with_preserve_order(&self, preserve_order: bool) -> Option<Arc<dyn DataSource>> {
        self.with_scan(&self.scan.with_preserve_order(preserve_order)?)
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.scan.apply_expressions(f)
    }

    fn with_new_state(&self, state: Arc<dyn Any + Send + Sync>) -> Option<Arc<dyn DataSource>> {
        self.with_scan(&self.scan.with_new_state(state)?)
    }

    fn create_sibling_state(&self, config: &ConfigOptions) -> Option<Arc<dyn Any + Send + Sync>> {
        self.scan.create_sibling_state(config)
    }

    // Travels as the scan that it is; who decodes it prunes it again.
    fn try_to_proto(
        &self,
        context: &ExecutionPlanEncodeCtx<'_>,
    ) -> Result<Option<PhysicalPlanNode>> {
        DataSource::try_to_proto(self.scan.as_ref(), context)
    }
}

type VerdictReceiver = watch::Receiver<Option<Verdict>>;

/// One partition of a pruned scan: opens it at the first poll, then sets its dynamic
/// filters as verdicts come.
struct PrunedStream {
    schema: SchemaRef,
    state: State,
}

enum State {
    Unopened(Box<(PrunedScan, OpenArgs)>),
    Open {
        stream: SendableRecordBatchStream,
        pending: Option<Pending>,
    },
    Ended,
}

fn open(scan: &PrunedScan, args: OpenArgs) -> Result<State> {
    let config = args.context.session_config();
    let own = match execution(config) {
        Some(execution) => scan.open_partition(args.partition, &execution, config.options())?,
        None => None,
    };
    Ok(match own {
        Some(own) => State::Open {
            stream: own.scan.open_with_args(args)?,
            pending: Some(own.pending),
        },
        None => State::Open {
            stream: scan.scan.open_with_args(args)?,
            pending: None,
        },
    })
}

impl Stream for PrunedStream {
    type Item = Result<RecordBatch>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        this.state = match std::mem::replace(&mut this.state, State::Ended) {
            State::Unopened(unopened) => match open(&unopened.0, unopened.1) {
                Ok(state) => state,
                Err(error) => return Poll::Ready(Some(Err(error))),
            },
            state => state,
        };
        let State::Open { stream, pending } = &mut this.state else {
            return Poll::Ready(None);
        };
        if let Some(verdicts) = pending {
            verdicts.take_up_verdicts();
            if verdicts.filters.is_empty() {
                *pending = None;
            }
        }
        stream.poll_next_unpin(cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.state {
            State::Unopened(_) => (0, None),
            State::Open { stream, .. } => stream.size_hint(),
            State::Ended => (0, Some(0)),
        }
    }
}

impl RecordBatchStream for PrunedStream {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

#[cfg(test)]
mod tests;
