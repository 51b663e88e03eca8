//! The plot: formulas as lines, measurements as points.

use std::error::Error;
use std::fs;
use std::path::Path;

use plotters::coord::Shift;
use plotters::element::DynElement;
use plotters::prelude::*;

use crate::args::Args;
use crate::measure::{Kind, Run, Sample};
use crate::report::{grouped, plain_percent};

type Backend<'a> = SVGBackend<'a>;
type Area<'a> = DrawingArea<Backend<'a>, Shift>;

const SIZE: (u32, u32) = (1240, 620);

/// Below this nothing is drawn: no measurement of a sensible length gets there.
const LOWEST_FPP: f64 = 1e-6;

/// Points as (x, FPP).
type Points = Vec<(f64, f64)>;

pub(crate) struct Plot<'a> {
    pub(crate) args: &'a Args,
    /// Keys of the sweep.
    pub(crate) items: u64,
    /// The formula over the sweep, by kind.
    pub(crate) curves: &'a [Points],
    /// A row for each number of bits, by kind.
    pub(crate) sweep: &'a [[Option<Sample>; 5]],
    pub(crate) runs: &'a [(Kind, Run)],
}

/// Fails before the measurements rather than after.
pub(crate) fn check_folder(path: &Path) -> Result<(), String> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    match folder {
        Some(folder) if !folder.is_dir() => Err(format!(
            "cannot write {}: there is no folder {}; create it or choose another with --out",
            path.display(),
            folder.display()
        )),
        _ if path.extension().is_none_or(|extension| extension != "svg") => Err(format!(
            "cannot write {}: the plot is an SVG; give --out a name that ends in .svg",
            path.display()
        )),
        _ if path.is_dir() => Err(format!(
            "cannot write {}: it is a folder; name a file with --out",
            path.display()
        )),
        _ => Ok(()),
    }
}

pub(crate) fn write(path: &Path, plot: &Plot<'_>) -> Result<(), Box<dyn Error>> {
    let mut svg = String::new();
    draw(plot, &mut svg).map_err(|error| format!("cannot draw the plot: {error}"))?;
    fs::write(path, svg).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(())
}

fn draw(plot: &Plot<'_>, svg: &mut String) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let body = root.margin(8, 0, 0, 0).titled(
        "False positive probability: formula (lines) and measurement (points)",
        ("sans-serif", 22),
    )?;
    let (left, right) = body.split_horizontally(SIZE.0 / 2);

    let sweep: Vec<Series> = Kind::ALL
        .into_iter()
        .enumerate()
        .map(|(index, kind)| Series {
            kind,
            formula: plot.curves[index].clone(),
            measured: plot
                .sweep
                .iter()
                .filter_map(|row| row[index].as_ref())
                .map(|sample| (sample.bits_per_key, sample.measured))
                .collect(),
        })
        .collect();
    let margin = 0.5;
    let (from, to) = (
        f64::from(plot.args.sweep.from),
        f64::from(plot.args.sweep.to),
    );
    panel(
        &left,
        &format!("By memory, {} keys", grouped(plot.items)),
        "bits a key",
        (from - margin, to + margin),
        SeriesLabelPosition::LowerLeft,
        &sweep,
    )?;

    let fill: Vec<Series> = plot
        .runs
        .iter()
        .map(|(kind, run)| Series {
            kind: *kind,
            formula: run.curve.clone(),
            measured: run
                .steps
                .iter()
                .map(|sample| {
                    (
                        sample.keys as f64 / sample.sized_for as f64,
                        sample.measured,
                    )
                })
                .collect(),
        })
        .collect();
    panel(
        &right,
        &format!("By fill, sized for {}", plot.args.target()),
        "keys over the keys sized for",
        (0.0, plot.args.overfill * 1.05),
        SeriesLabelPosition::LowerRight,
        &fill,
    )?;
    root.present()?;
    Ok(())
}

struct Series {
    kind: Kind,
    formula: Points,
    measured: Points,
}

fn panel(
    area: &Area<'_>,
    title: &str,
    x_title: &str,
    x_range: (f64, f64),
    legend_at: SeriesLabelPosition,
    series: &[Series],
) -> Result<(), Box<dyn Error>> {
    let shown = |&(x, fpp): &(f64, f64)| x_range.0 <= x && x <= x_range.1 && fpp >= LOWEST_FPP;
    let lowest = series
        .iter()
        .flat_map(|series| series.formula.iter().chain(&series.measured))
        .filter(|point| shown(point))
        .map(|point| point.1)
        .fold(0.1, f64::min);
    let floor = 10f64.powf(lowest.log10().floor());

    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(72)
        .build_cartesian_2d(x_range.0..x_range.1, (floor..1.0).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(BLACK.mix(0.12))
        .x_desc(x_title)
        .y_desc("false positive probability")
        .x_label_formatter(&|x| format!("{}", (x * 100.0).round() / 100.0))
        .y_label_formatter(&|fpp| plain_percent(*fpp))
        .label_style(("sans-serif", 15))
        .axis_desc_style(("sans-serif", 16))
        .draw()?;
    for Series {
        kind,
        formula,
        measured,
    } in series
    {
        let colour = colour(*kind);
        let line = formula.iter().copied().filter(shown);
        chart.draw_series(LineSeries::new(line, colour.stroke_width(2)))?;
        let points = measured.iter().copied().filter(shown);
        let kind = *kind;
        chart
            .draw_series(points.map(|point| marker(kind, point)))?
            .label(kind.name())
            .legend(move |(x, y)| marker(kind, (x + 12, y)));
    }
    chart
        .configure_series_labels()
        .position(legend_at)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 15))
        .draw()?;
    Ok(())
}

/// Told apart by colour-blind readers as well (Okabe, Ito: Color Universal Design, 2008).
fn colour(kind: Kind) -> RGBColor {
    match kind {
        Kind::SplitBlock => RGBColor(213, 94, 0),
        Kind::Classic => RGBColor(0, 114, 178),
        Kind::Counting => RGBColor(86, 180, 233),
        Kind::Scalable => RGBColor(0, 158, 115),
        Kind::Cuckoo => RGBColor(204, 121, 167),
    }
}

fn marker<DB, C>(kind: Kind, at: C) -> DynElement<'static, DB, C>
where
    DB: DrawingBackend,
    C: Clone + 'static,
{
    let colour = colour(kind);
    match kind {
        Kind::SplitBlock => Circle::new(at, 4, colour.filled()).into_dyn(),
        Kind::Classic => Circle::new(at, 4, colour.stroke_width(2)).into_dyn(),
        Kind::Counting => TriangleMarker::new(at, 5, colour.filled()).into_dyn(),
        Kind::Scalable => Cross::new(at, 4, colour.stroke_width(2)).into_dyn(),
        Kind::Cuckoo => TriangleMarker::new(at, -5, colour.filled()).into_dyn(),
    }
}
