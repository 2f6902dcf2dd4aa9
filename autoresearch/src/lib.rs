//! Search over schedules: space, proposers, judge, journal.
