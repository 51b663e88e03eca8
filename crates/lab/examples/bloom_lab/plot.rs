//! The plot: formulas as lines, measurements as points.

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use plotters::coord::Shift;
use plotters::element::DynElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::args::Args;
use crate::measure::{Kind, Run, Sample};
use crate::report::{counted, plain_percent};

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

/// Height of the legend, which has a strip of its own so that it covers no data.
const LEGEND_HEIGHT: u32 = 30;

/// Fails before the measurements rather than after. Leaves a file that is there as it is.
pub(crate) fn check_file(path: &Path) -> Result<(), String> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    match folder {
        Some(folder) if folder.exists() && !folder.is_dir() => Err(format!(
            "cannot write {}: {} is a file, not a folder; choose another with --out",
            path.display(),
            folder.display()
        )),
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
        _ => try_to_open(path).map_err(|error| format!("cannot write {}: {error}", path.display())),
    }
}

fn try_to_open(path: &Path) -> io::Result<()> {
    // A link that leads nowhere is there too, and is not to be removed.
    let existed = path.symlink_metadata().is_ok();
    OpenOptions::new().append(true).create(true).open(path)?;
    // What ends early should not leave an empty plot.
    if existed {
        Ok(())
    } else {
        fs::remove_file(path)
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
    let (strip, panels) = body.split_vertically(LEGEND_HEIGHT);
    legend(&strip)?;
    let (left, right) = panels.split_horizontally(SIZE.0 / 2);

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
        &format!("By memory, {}", counted(plot.items, "key")),
        "bits a key",
        (from - margin, to + margin),
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
        let style = colour(*kind).stroke_width(2);
        let line = formula.iter().copied().filter(shown);
        match kind {
            // By the keys it is the same line as that of the classic filter, which must show through.
            Kind::Counting => chart.draw_series(DashedLineSeries::new(line, 8, 8, style))?,
            _ => chart.draw_series(LineSeries::new(line, style))?,
        };
        let points = measured.iter().copied().filter(shown);
        chart.draw_series(points.map(|point| marker(*kind, point)))?;
    }
    Ok(())
}

/// All kinds in a row.
fn legend(area: &Area<'_>) -> Result<(), Box<dyn Error>> {
    const WIDTH: i32 = 150;
    let middle = LEGEND_HEIGHT as i32 / 2;
    let mut x = (SIZE.0 as i32 - WIDTH * Kind::ALL.len() as i32) / 2;
    for kind in Kind::ALL {
        let style = colour(kind).stroke_width(2);
        let gap = if matches!(kind, Kind::Counting) { 8 } else { 0 };
        area.draw(&PathElement::new(
            [(x, middle), (x + 12 - gap / 2, middle)],
            style,
        ))?;
        area.draw(&PathElement::new(
            [(x + 12 + gap / 2, middle), (x + 24, middle)],
            style,
        ))?;
        area.draw(&marker(kind, (x + 12, middle)))?;
        let text = ("sans-serif", 15).into_text_style(area);
        let text = text.pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(kind.name(), (x + 32, middle), text))?;
        x += WIDTH;
    }
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
