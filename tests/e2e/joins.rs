//! Joins of every shape over small hostile tables: NULLs, NaN, -0.0, repeated names,
//! empty files, keys of every common type.

use std::path::Path;

use datafusion::prelude::{ParquetReadOptions, SessionContext};

use crate::support::{Cluster, ORACLE, PARTITIONED, run};

/// `many`: 40,000 rows over four files, one of them empty; `few`: 60 rows over two.
/// `k` is NULL in every 13th (7th) row.
pub async fn write_tables(folder: &Path) {
    let context = SessionContext::new();
    let columns = "
        case when v % {null} = 0 then null else v % {domain} end as k,
        cast(v % {domain} as int) as i,
        'name ' || (v % {domain}) as s,
        case v % 5 when 0 then cast('NaN' as double) when 1 then -0.0 when 2 then 0.0 else v % {domain} + 0.5 end as fl,
        cast((v % {domain}) as decimal(18, 2)) / 4 as d,
        date '2020-01-01' + cast((v % {domain}) || ' days' as interval) as day,
        v % 3 = 0 as b,
        v as id";
    for (table, null, domain, files) in [
        (
            "many",
            "13",
            "5000",
            &[(0, 15_000), (15_000, 30_000), (30_000, 40_000), (0, 0)][..],
        ),
        ("few", "7", "97", &[(100, 140), (140, 160)][..]),
    ] {
        std::fs::create_dir_all(folder.join(table)).unwrap();
        for (i, (from, to)) in files.iter().enumerate() {
            let columns = columns.replace("{null}", null).replace("{domain}", domain);
            let file = folder.join(table).join(format!("{i}.parquet"));
            let sql = format!(
                "copy (select {columns} from (select value as v from range({from}, {to}))) to '{}' stored as parquet",
                file.display()
            );
            context.sql(&sql).await.unwrap().collect().await.unwrap();
        }
    }
}

pub async fn register(context: &SessionContext, folder: &Path) {
    for table in ["many", "few"] {
        let path = folder.join(table);
        let path = path.to_str().unwrap();
        context
            .register_parquet(table, path, ParquetReadOptions::default())
            .await
            .unwrap();
    }
}

/// Each join twice: once with a condition on the small side that keeps some rows,
/// once with one that keeps none.
const QUERIES: [&str; 38] = [
    "select count(*), sum(m.id) from few f join many m on f.k = m.k where f.id < {x}",
    "select count(*), sum(m.id) from few f join many m on f.i = m.i where f.id < {x}",
    "select count(*), sum(m.id) from few f join many m on f.s = m.s where f.id < {x}",
    "select count(*), sum(m.id) from few f join many m on f.fl = m.fl where f.id < {x}",
    "select count(*), sum(m.id) from few f join many m on f.d = m.d where f.id < {x}",
    "select count(*), sum(m.id) from few f join many m on f.day = m.day where f.id < {x}",
    "select count(*), sum(m.id) from few f join many m on f.k = m.k and f.s = m.s where f.id < {x}",
    "select count(*), sum(m.id) from few f join many m on f.k = m.k and f.b = m.b and f.i = m.i where f.id < {x}",
    "select count(*), sum(m.id) from few f join many m on f.k = m.i + 1 where f.id < {x}",
    "select count(*), sum(m.id) from few f join many m on f.i = m.k where f.id < {x}",
    "select count(*), sum(m.id) from few f join many m on f.k is not distinct from m.k where f.id < {x}",
    "select count(*), count(m.id), sum(m.id) from few f left join many m on f.k = m.k where f.id < {x}",
    "select count(*), count(m.id), sum(m.id) from few f left join many m on f.k is not distinct from m.k where f.id < {x}",
    "select count(*), count(f.id), sum(m.id) from few f right join many m on f.k = m.k and f.id < {x}",
    "select count(*), count(f.id), count(m.id) from (select * from few where id < {x}) f full join many m on f.k = m.k",
    "select count(*), sum(m.id) from many m where exists (select 1 from few f where f.k = m.k and f.id < {x})",
    "select count(*), sum(m.id) from many m where not exists (select 1 from few f where f.k = m.k and f.id < {x})",
    "select count(*), sum(m.id) from many m where m.k in (select f.k from few f where f.id < {x})",
    "select count(*), sum(m.id) from many m where m.k not in (select f.k from few f where f.id < {x})",
    "select count(*), sum(m.id) from many m where m.i not in (select f.i from few f where f.id < {x})",
    "select count(*), sum(f.id) from few f where f.id < {x} and exists (select 1 from many m where f.k = m.k)",
    "select count(*), sum(f.id) from few f where f.id < {x} and not exists (select 1 from many m where f.k = m.k)",
    "select count(*), sum(f.id) from few f where f.id < {x} and f.k not in (select m.k from many m)",
    "select count(*), sum(m.id) from few f join many m on f.k = m.k and m.id > f.id * 100 where f.id < {x}",
    "select count(*), sum(n) from few f join (select k, count(*) n from many group by k) m on f.k = m.k where f.id < {x}",
    "select count(*), sum(n) from few f join (select k, i, count(*) n from many group by k, i having count(*) > 3) m on f.k = m.k where f.id < {x}",
    "select count(*), sum(n) from few f join (select k, b, count(*) n from many group by grouping sets ((k), (b), (k, b))) m on f.k = m.k where f.id < {x}",
    "select count(*), sum(r) from few f join (select k, row_number() over (partition by k order by id) r from many) m on f.k = m.k where f.id < {x}",
    "select count(*), sum(r) from few f join (select k, row_number() over (order by id) r from many) m on f.k = m.k where f.id < {x}",
    "select count(*), sum(m.id) from few f join (select k, id from many order by id limit 5000) m on f.k = m.k where f.id < {x}",
    "select count(*), sum(m.id) from (select k from few where id < {x} order by id limit 7) f join many m on f.k = m.k",
    "select count(*), sum(m.id) from few f join (select k, id from many union all select i, id from many) m on f.k = m.k where f.id < {x}",
    "select count(*), count(distinct m.s) from few f join (select distinct k, s from many) m on f.k = m.k where f.id < {x}",
    "with m as (select * from many where i < 3000) select count(*), sum(a.id) from few f join m a on f.k = a.k join m b on a.k = b.k and a.id = b.id where f.id < {x}",
    "select count(*), sum(a.id) from few f join many a on f.k = a.k join many b on a.id = b.id where f.id < {x} and b.b",
    "select count(*), sum(m.id) from few f join few g on f.k = g.k join many m on g.i = m.i where f.id < {x}",
    "select count(*), sum(m.id) from few f join many m using (k) where f.id < {x}",
    "select count(*) from (select k, i from few where id < {x} intersect select k, i from many)",
];

async fn all(settings: &[(&str, &str)]) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    write_tables(folder.path()).await;
    let cluster = Cluster::start(3).await;
    let force = [
        ("runtime_filter.force", "true"),
        ("runtime_filter.late_materialization", "true"),
        ("runtime_filter.begin_timeout_ms", "30000"),
    ];
    let oracle = cluster.session(&[&ORACLE[..], settings].concat());
    let filtered = cluster.session(&[&force[..], settings].concat());
    register(&oracle, folder.path()).await;
    register(&filtered, folder.path()).await;
    let mut dropped = 0;
    for query in QUERIES {
        for x in ["130", "0"] {
            let sql = query.replace("{x}", x);
            let (off, on) = (run(&oracle, &sql).await, run(&filtered, &sql).await);
            on.rows.assert_same(&off.rows, &sql);
            dropped += on.report.rows_dropped();
        }
    }
    cluster.assert_empty().await;
    dropped
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitioned_joins_of_every_shape_give_equal_rows() {
    let dropped = all(&PARTITIONED).await;
    assert!(
        dropped > 400_000,
        "{dropped} rows dropped: filters were hardly applied"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn collected_joins_of_every_shape_give_equal_rows() {
    all(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn merge_joins_of_every_shape_give_equal_rows() {
    let merge = [("datafusion.optimizer.prefer_hash_join", "false")];
    let dropped = all(&merge).await;
    assert!(
        dropped > 100_000,
        "{dropped} rows dropped: filters were hardly applied"
    );
}
