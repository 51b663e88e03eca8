//! Random queries over the tables of a case.

use std::fmt::Write as _;

use crate::data::{Class, Table};
use crate::tape::Tape;

/// Something with columns that a FROM clause can name.
#[derive(Debug, Clone)]
struct Relation {
    sql: String,
    columns: Vec<(String, Class)>,
}

/// A column in scope, as it is referred to.
#[derive(Debug, Clone)]
struct Column {
    path: String,
    class: Class,
}

struct Queries<'a> {
    tape: &'a mut Tape,
    base: Vec<Relation>,
    names: usize,
}

/// A query whose rows do not depend on the order of anything: every LIMIT comes with an order by
/// all columns, and sums are of whole numbers.
pub fn query(tape: &mut Tape, tables: &[Table]) -> String {
    let base = tables
        .iter()
        .map(|table| Relation {
            sql: table.name.clone(),
            columns: table
                .columns
                .iter()
                .map(|(name, class)| ((*name).to_owned(), *class))
                .collect(),
        })
        .collect();
    let mut queries = Queries {
        tape,
        base,
        names: 0,
    };
    queries.statement()
}

const JOINS: [&str; 8] = [
    "JOIN",
    "LEFT JOIN",
    "LEFT SEMI JOIN",
    "LEFT ANTI JOIN",
    "RIGHT JOIN",
    "RIGHT SEMI JOIN",
    "RIGHT ANTI JOIN",
    "FULL JOIN",
];

impl Queries<'_> {
    fn name(&mut self) -> String {
        self.names += 1;
        format!("r{}", self.names)
    }

    fn statement(&mut self) -> String {
        let mut with = String::new();
        match self.tape.below(8) {
            5 | 6 => {
                let relation = self.relation(1);
                let name = self.name();
                let columns = relation.columns.clone();
                let _ = write!(with, "WITH {name} AS (SELECT * FROM {}) ", relation.sql);
                let shared = Relation { sql: name, columns };
                // Used by two of three, so mostly twice.
                self.base[0] = shared.clone();
                self.base[1] = shared;
            }
            7 => {
                let name = self.name();
                let last = self.tape.below(40);
                let _ = write!(
                    with,
                    "WITH RECURSIVE {name} AS (SELECT CAST(0 AS BIGINT) AS v UNION ALL \
                     SELECT v + 1 FROM {name} WHERE v < {last}) "
                );
                self.base[0] = Relation {
                    sql: name,
                    columns: vec![("v".to_owned(), Class::Int)],
                };
            }
            _ => {}
        }
        let (from, columns) = self.joins(2);
        let predicate = self.predicates(&columns);
        format!("{with}{}", self.select(&from, &predicate, &columns))
    }

    fn select(&mut self, from: &str, predicate: &str, columns: &[Column]) -> String {
        let all: Vec<_> = columns
            .iter()
            .enumerate()
            .map(|(number, column)| format!("{} AS c{number}", column.path))
            .collect();
        let all = all.join(", ");
        let order: Vec<_> = (1..=columns.len()).map(|n| n.to_string()).collect();
        let order = order.join(", ");
        let group = self.tape.one(columns).path.clone();
        let sum = self.sum(columns);
        let body = format!("FROM {from}{predicate}");
        match self.tape.below(7) {
            0 => format!("SELECT {all} {body}"),
            1 => format!("SELECT count(*) AS n, {sum} AS s {body}"),
            2 => format!("SELECT {group} AS g, count(*) AS n, {sum} AS s {body} GROUP BY {group}"),
            3 => format!(
                "SELECT {group} AS g, count(*) AS n {body} GROUP BY {group} HAVING count(*) > {}",
                1 + self.tape.below(3)
            ),
            4 => format!("SELECT DISTINCT {all} {body}"),
            5 => format!(
                "SELECT {all} {body} ORDER BY {order} LIMIT {}",
                1 + self.tape.below(30)
            ),
            _ => format!(
                "SELECT n, count(*) AS m FROM (SELECT count(*) OVER (PARTITION BY {group}) AS n \
                 {body}) AS w GROUP BY n"
            ),
        }
    }

    fn sum(&mut self, columns: &[Column]) -> String {
        let ints: Vec<_> = columns.iter().filter(|c| c.class == Class::Int).collect();
        match ints.as_slice() {
            [] => "count(*)".to_owned(),
            ints => format!("sum(CAST({} AS BIGINT))", self.tape.one(ints).path),
        }
    }

    /// A FROM clause of `depth` joins at least, and what is in scope after it.
    fn joins(&mut self, depth: usize) -> (String, Vec<Column>) {
        let (mut from, mut columns) = self.aliased(depth);
        for _ in 0..=self.tape.below(3) {
            let (right, right_columns) = self.aliased(depth);
            let join = *self.tape.one(&JOINS);
            let Some(condition) = self.condition(&columns, &right_columns) else {
                continue;
            };
            from = format!("{from} {join} {right} ON {condition}");
            match join {
                "LEFT SEMI JOIN" | "LEFT ANTI JOIN" => {}
                "RIGHT SEMI JOIN" | "RIGHT ANTI JOIN" => columns = right_columns,
                _ => columns.extend(right_columns),
            }
        }
        (from, columns)
    }

    fn aliased(&mut self, depth: usize) -> (String, Vec<Column>) {
        let relation = self.relation(depth);
        let name = self.name();
        let columns = relation
            .columns
            .iter()
            .map(|(column, class)| Column {
                path: format!("{name}.{column}"),
                class: *class,
            })
            .collect();
        (format!("{} AS {name}", relation.sql), columns)
    }

    /// Pairs of columns that are equal, and perhaps more.
    fn condition(&mut self, left: &[Column], right: &[Column]) -> Option<String> {
        let mut pairs = vec![];
        for l in left {
            for r in right.iter().filter(|r| r.class == l.class) {
                pairs.push((l, r));
            }
        }
        if pairs.is_empty() {
            return None;
        }
        let mut terms = vec![];
        for _ in 0..*self.tape.one(&[1, 1, 1, 2, 2, 3]) {
            let (l, r) = *self.tape.one(&pairs);
            terms.push(match self.tape.below(8) {
                // Binds weaker than AND without them.
                6 => format!("({} IS NOT DISTINCT FROM {})", l.path, r.path),
                7 if l.class == Class::Int => format!("{} + 1 = {}", l.path, r.path),
                _ => format!("{} = {}", l.path, r.path),
            });
        }
        if self.tape.once_in(4) {
            let ints: Vec<_> = pairs
                .iter()
                .filter(|(l, _)| l.class == Class::Int)
                .collect();
            if !ints.is_empty() {
                let (l, r) = *self.tape.one(&ints);
                terms.push(format!("{} < {} + {}", l.path, r.path, self.tape.below(50)));
            }
        }
        Some(terms.join(" AND "))
    }

    /// A WHERE clause, or nothing.
    fn predicates(&mut self, columns: &[Column]) -> String {
        let mut terms = vec![];
        for _ in 0..self.tape.below(3) {
            terms.push(self.predicate(columns));
        }
        match terms.as_slice() {
            [] => String::new(),
            terms => format!(" WHERE {}", terms.join(" AND ")),
        }
    }

    fn predicate(&mut self, columns: &[Column]) -> String {
        let column = self.tape.one(columns).clone();
        let path = &column.path;
        match self.tape.below(8) {
            0 | 1 => match column.class {
                Class::Int => format!("{path} < {}", self.tape.below(120)),
                _ => format!("{path} IS NOT NULL"),
            },
            2 => match column.class {
                Class::Int => format!("{path} % 3 = {}", self.tape.below(3)),
                _ => format!("{path} IS NULL"),
            },
            3 => "random() < 2.0".to_owned(),
            way => {
                let inner = self.base_table();
                let name = self.name();
                let matches: Vec<_> = inner
                    .columns
                    .iter()
                    .filter(|(_, class)| *class == column.class)
                    .collect();
                if matches.is_empty() {
                    return format!("{path} IS NOT NULL");
                }
                let (key, _) = self.tape.one(&matches);
                let ints = inner.columns.iter().find(|(name, _)| name == "v");
                let limit = self.tape.below(60);
                let filter = ints.map_or("true".to_owned(), |_| format!("{name}.v < {limit}"));
                let table = &inner.sql;
                let not = if way % 2 == 1 { "NOT " } else { "" };
                if way < 6 {
                    format!(
                        "{not}EXISTS (SELECT 1 FROM {table} AS {name} \
                         WHERE {name}.{key} = {path} AND {filter})"
                    )
                } else {
                    format!(
                        "{path} {not}IN (SELECT {name}.{key} FROM {table} AS {name} WHERE {filter})"
                    )
                }
            }
        }
    }

    fn base_table(&mut self) -> Relation {
        self.tape.one(&self.base).clone()
    }

    fn relation(&mut self, depth: usize) -> Relation {
        let table = self.base_table();
        if depth == 0 {
            return table;
        }
        let way = self.tape.below(9);
        if way == 0 {
            return table;
        }
        if way == 8 {
            return self.derived_join();
        }
        let inner = self.relation(depth - 1);
        let name = self.name();
        let columns: Vec<Column> = inner
            .columns
            .iter()
            .map(|(column, class)| Column {
                path: format!("{name}.{column}"),
                class: *class,
            })
            .collect();
        let order: Vec<_> = (1..=columns.len()).map(|n| n.to_string()).collect();
        let order = order.join(", ");
        let from = format!("FROM {} AS {name}", inner.sql);
        let key = self.tape.one(&inner.columns).clone();
        // Of its own: HAVING and ORDER BY see names of the input, too.
        let count = format!("n_{name}");
        let (sql, columns) = match way {
            1 | 2 => {
                let predicate = self.predicate(&columns);
                (
                    format!("(SELECT * {from} WHERE {predicate})"),
                    inner.columns,
                )
            }
            3 => {
                let more = self.tape.below(2);
                let sql = format!(
                    "(SELECT {0}, count(*) AS {count} {from} GROUP BY {0} HAVING count(*) > {more})",
                    key.0
                );
                (sql, vec![key, (count, Class::Int)])
            }
            4 => (format!("(SELECT DISTINCT {} {from})", key.0), vec![key]),
            5 => {
                let limit = 1 + self.tape.below(80);
                (
                    format!("(SELECT * {from} ORDER BY {order} LIMIT {limit})"),
                    inner.columns,
                )
            }
            6 => {
                let predicate = self.predicate(&columns);
                (
                    format!("(SELECT * {from} UNION ALL SELECT * {from} WHERE {predicate})"),
                    inner.columns,
                )
            }
            _ => {
                let window = match self.tape.below(2) {
                    0 => format!("count(*) OVER (PARTITION BY {})", key.0),
                    _ => {
                        let by = &self.tape.one(&inner.columns).0;
                        format!("rank() OVER (PARTITION BY {} ORDER BY {by})", key.0)
                    }
                };
                let sql = format!("(SELECT {}, {window} AS {count} {from})", key.0);
                (sql, vec![key, (count, Class::Int)])
            }
        };
        Relation { sql, columns }
    }

    fn derived_join(&mut self) -> Relation {
        let (left, left_columns) = self.aliased(0);
        let (right, right_columns) = self.aliased(0);
        let Some(condition) = self.condition(&left_columns, &right_columns) else {
            return self.base_table();
        };
        let join = *self.tape.one(&["JOIN", "LEFT JOIN", "FULL JOIN"]);
        let mut list = vec![];
        let mut columns = vec![];
        for (number, column) in left_columns.iter().chain(&right_columns).enumerate() {
            list.push(format!("{} AS c{number}", column.path));
            columns.push((format!("c{number}"), column.class));
        }
        Relation {
            sql: format!(
                "(SELECT {} FROM {left} {join} {right} ON {condition})",
                list.join(", ")
            ),
            columns,
        }
    }
}
