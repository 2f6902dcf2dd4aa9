//! Dates for chat templates, in UTC.

use std::fmt::Write as _;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Formats a time in seconds since 1970 (UTC) as C's `strftime` does in the C locale. A directive that is not known
/// is printed as it stands.
pub fn format(seconds: i64, format: &str) -> String {
    let days = seconds.div_euclid(86_400);
    let (year, month, day) = civil(days);
    let of_day = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let week_day = (days + 4).rem_euclid(7);
    let weekday = DAYS[week_day as usize];
    let year_day = days - days_from_civil(year, 1, 1);
    // The week of ISO 8601 is that of its Thursday.
    let thursday = days + 3 - (week_day + 6) % 7;
    let iso_year = civil(thursday).0;
    let iso_week = (thursday - days_from_civil(iso_year, 1, 1)) / 7 + 1;
    let month_name = MONTHS[(month - 1) as usize];
    let hour12 = (hour + 11) % 12 + 1;
    let half = if hour < 12 { "AM" } else { "PM" };
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let (plain, directive) = match chars.next() {
            Some('-') => (true, chars.next()),
            d => (false, d),
        };
        let mut number = |n: i64, width: usize| {
            let width = if plain { 0 } else { width };
            let _ = write!(out, "{n:0width$}");
        };
        match directive {
            Some('Y') => number(year, 4),
            Some('y') => number(year.rem_euclid(100), 2),
            Some('m') => number(month, 2),
            Some('d') => number(day, 2),
            Some('H') => number(hour, 2),
            Some('I') => number(hour12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('j') => number(year_day + 1, 3),
            Some('s') => number(seconds, 1),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(weekday),
            Some('a') => out.push_str(&weekday[..3]),
            Some('p') => out.push_str(half),
            Some('e') => {
                let width = if plain { 0 } else { 2 };
                let _ = write!(out, "{day:width$}");
            }
            Some('F') => {
                let _ = write!(out, "{year:04}-{month:02}-{day:02}");
            }
            Some('T' | 'X') => {
                let _ = write!(out, "{hour:02}:{minute:02}:{second:02}");
            }
            // The clock that templates are given knows no zone, and Python then prints none.
            Some('Z' | 'z') => {}
            Some('C') => number(year.div_euclid(100), 2),
            Some('f') => number(0, 6),
            Some('w') => number(week_day, 1),
            Some('u') => number((week_day + 6) % 7 + 1, 1),
            // Weeks of the year, from its first Sunday and its first Monday.
            Some('U') => number((year_day + 7 - week_day) / 7, 2),
            Some('W') => number((year_day + 7 - (week_day + 6) % 7) / 7, 2),
            Some('G') => number(iso_year, 4),
            Some('g') => number(iso_year.rem_euclid(100), 2),
            Some('V') => number(iso_week, 2),
            Some('k') => {
                let _ = write!(out, "{hour:2}");
            }
            Some('l') => {
                let _ = write!(out, "{hour12:2}");
            }
            Some('P') => out.push_str(&half.to_lowercase()),
            Some('D' | 'x') => {
                let _ = write!(out, "{month:02}/{day:02}/{:02}", year.rem_euclid(100));
            }
            Some('R') => {
                let _ = write!(out, "{hour:02}:{minute:02}");
            }
            Some('r') => {
                let _ = write!(out, "{hour12:02}:{minute:02}:{second:02} {half}");
            }
            Some('c') => {
                let (a, b) = (&weekday[..3], &month_name[..3]);
                let _ = write!(out, "{a} {b} {day:2} {hour:02}:{minute:02}:{second:02} {year:04}");
            }
            Some('t') => out.push('\t'),
            Some('%') => out.push('%'),
            Some('n') => out.push('\n'),
            Some(other) => {
                out.push_str(if plain { "%-" } else { "%" });
                out.push(other);
            }
            None => out.push('%'),
        }
    }
    out
}

/// Days since 1970-01-01 to (year, month, day) of the proleptic Gregorian calendar.
fn civil(days: i64) -> (i64, i64, i64) {
    // Years are counted from 1 March, so that the leap day comes last.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let year_of_era = y.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates() {
        assert_eq!(format(0, "%A %d %B %Y %H:%M:%S %j"), "Thursday 01 January 1970 00:00:00 001");
        assert_eq!(format(951_782_400, "%F %a %j"), "2000-02-29 Tue 060");
        assert_eq!(format(1_735_689_599, "%d %b %Y, %I:%M %p"), "31 Dec 2024, 11:59 PM");
        assert_eq!(format(-1, "%F %T"), "1969-12-31 23:59:59");
        assert_eq!(format(1_709_164_800, "%-d/%-m/%y%% %Q %"), "29/2/24% %Q %");
    }

    /// As Python prints them.
    #[test]
    fn less_common_directives() {
        let all = "%C %f %w %u %U %W %G %g %V %k %l %P %D %x %R %X %r %c[%Z%z]";
        for (seconds, expected) in [
            (
                1000000000,
                "20 000000 0 7 36 36 2001 01 36  1  1 am 09/09/01 09/09/01 01:46 01:46:40 01:46:40 AM Sun Sep  9 01:46:40 2001[]",
            ),
            (
                1735689599,
                "20 000000 2 2 52 53 2025 25 01 23 11 pm 12/31/24 12/31/24 23:59 23:59:59 11:59:59 PM Tue Dec 31 23:59:59 2024[]",
            ),
            (
                1104541200,
                "20 000000 6 6 00 00 2004 04 53  1  1 am 01/01/05 01/01/05 01:00 01:00:00 01:00:00 AM Sat Jan  1 01:00:00 2005[]",
            ),
            (
                951782400,
                "20 000000 2 2 09 09 2000 00 09  0 12 am 02/29/00 02/29/00 00:00 00:00:00 12:00:00 AM Tue Feb 29 00:00:00 2000[]",
            ),
            (
                1230768000,
                "20 000000 4 4 00 00 2009 09 01  0 12 am 01/01/09 01/01/09 00:00 00:00:00 12:00:00 AM Thu Jan  1 00:00:00 2009[]",
            ),
            (
                1609459200,
                "20 000000 5 5 00 00 2020 20 53  0 12 am 01/01/21 01/01/21 00:00 00:00:00 12:00:00 AM Fri Jan  1 00:00:00 2021[]",
            ),
        ] {
            assert_eq!(format(seconds, all), expected);
        }
    }

    #[test]
    fn calendar_round_trip() {
        for days in (-800_000..800_000).step_by(97) {
            let (y, m, d) = civil(days);
            assert_eq!(days_from_civil(y, m, d), days);
            assert!((1..=12).contains(&m) && (1..=31).contains(&d));
        }
    }
}
