//! Line charts as SVG, made by hand: sufficient for tables of a few series.

use std::fmt::Write;

/// A named line.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Points, in the order of the line.
    pub points: Vec<(f64, f64)>,
}

/// A chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Text above it.
    pub title: String,
    /// Label below it.
    pub x: String,
    /// Label beside it.
    pub y: String,
    /// Its lines.
    pub series: Vec<Series>,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 55.0;
const COLOURS: [&str; 8] = [
    "#1b6ca8", "#d1495b", "#3a7d44", "#8d6a9f", "#e08e1b", "#3c3c3c", "#00a6a6", "#a0522d",
];

impl Chart {
    /// The chart as an SVG document. The y axis begins at zero, or below if a value does.
    pub fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let xs = Axis::over(points().map(|point| point.0), LEFT, WIDTH - RIGHT);
        let with_zero = points().map(|point| point.1).chain([0.0]);
        let ys = Axis::over(with_zero, HEIGHT - BOTTOM, TOP);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
        );
        text(
            &mut svg,
            (LEFT, 22.0),
            "start",
            "font-size=\"15\"",
            &self.title,
        );
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        text(&mut svg, (middle, HEIGHT - 12.0), "middle", "", &self.x);
        let turned = format!("transform=\"rotate(-90 16 {})\"", HEIGHT / 2.0);
        text(&mut svg, (16.0, HEIGHT / 2.0), "middle", &turned, &self.y);
        for tick in ys.ticks() {
            let y = ys.place(tick);
            line(&mut svg, (LEFT, y), (WIDTH - RIGHT, y), "#dddddd");
            text(&mut svg, (LEFT - 6.0, y + 4.0), "end", "", &number(tick));
        }
        for tick in xs.ticks() {
            let x = xs.place(tick);
            line(
                &mut svg,
                (x, HEIGHT - BOTTOM),
                (x, HEIGHT - BOTTOM + 5.0),
                "#888888",
            );
            let at = (x, HEIGHT - BOTTOM + 19.0);
            text(&mut svg, at, "middle", "", &number(tick));
        }
        for (index, series) in self.series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let dash = if index < COLOURS.len() {
                ""
            } else {
                " stroke-dasharray=\"5 3\""
            };
            let places = series.points.iter();
            let places = places.map(|(x, y)| format!("{:.1},{:.1}", xs.place(*x), ys.place(*y)));
            let places = places.collect::<Vec<_>>().join(" ");
            // Writing to a string cannot fail.
            let _ = writeln!(
                svg,
                "<polyline points=\"{places}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"{dash}/>"
            );
            let y = TOP + 10.0 + 20.0 * index as f64;
            let x = WIDTH - RIGHT + 14.0;
            line(&mut svg, (x, y), (x + 22.0, y), colour);
            text(&mut svg, (x + 28.0, y + 4.0), "start", "", &series.name);
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// Values along one direction, and their positions.
struct Axis {
    low: f64,
    high: f64,
    step: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let finite = values.filter(|value| value.is_finite());
        let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        let (low, high) = if low < high { (low, high) } else { (0.0, 1.0) };
        let rough = (high - low) / 6.0;
        let power = libm::pow(10.0, libm::log10(rough).floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
        let step = steps
            .into_iter()
            .find(|step| *step >= rough)
            .unwrap_or(rough);
        Self {
            low: (low / step).floor() * step,
            high: (high / step).ceil() * step,
            step,
            from,
            to,
        }
    }

    fn place(&self, value: f64) -> f64 {
        self.from + (value - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> + '_ {
        let count = ((self.high - self.low) / self.step).round();
        // CAST: a dozen at most.
        (0..=count as u32).map(|index| self.low + f64::from(index) * self.step)
    }
}

fn number(value: f64) -> String {
    let rounded = (value * 1e6).round() / 1e6;
    format!("{}", if rounded == 0.0 { 0.0 } else { rounded })
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, more: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {more}>{words}</text>"
    );
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let _ = writeln!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>",
        from.0, from.1, to.0, to.1
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_is_on_the_page() {
        let points = (0..50).map(|i| (f64::from(i), f64::from(i * i) - 99.0));
        let chart = Chart {
            title: "a < b & c".to_owned(),
            x: "x".to_owned(),
            y: "y".to_owned(),
            series: vec![Series {
                name: "s".to_owned(),
                points: points.collect(),
            }],
        };
        let svg = chart.svg();
        assert!(svg.contains("a &lt; b &amp; c") && !svg.contains("NaN"));
        let polyline = svg
            .lines()
            .find(|line| line.starts_with("<polyline"))
            .unwrap();
        let places = polyline.split('"').nth(1).unwrap();
        for place in places.split(' ') {
            let (x, y) = place.split_once(',').unwrap();
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!((LEFT..=WIDTH - RIGHT).contains(&x), "{place}");
            assert!((TOP..=HEIGHT - BOTTOM).contains(&y), "{place}");
        }
    }

    #[test]
    fn an_empty_chart_is_a_chart() {
        let empty = Chart {
            title: String::new(),
            x: String::new(),
            y: String::new(),
            series: Vec::new(),
        };
        assert!(!empty.svg().contains("NaN"));
    }
}
