//! Choices that a case is drawn from.

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};

/// A row of numbers that every choice of a case takes the next of. A case is a function of its
/// tape, so that a smaller tape is a smaller case: past the end every choice is the first, and
/// the first choice is always the plainest.
#[derive(Debug, Clone)]
pub struct Tape {
    numbers: Vec<u32>,
    next: usize,
    fresh: Option<StdRng>,
}

impl Tape {
    /// The tape of a seed, drawn as far as it is read.
    pub fn of_seed(seed: u64) -> Self {
        Self {
            numbers: vec![],
            next: 0,
            fresh: Some(StdRng::seed_from_u64(seed)),
        }
    }

    /// A tape with these numbers.
    pub fn of(numbers: Vec<u32>) -> Self {
        Self {
            numbers,
            next: 0,
            fresh: None,
        }
    }

    /// What has been read so far.
    pub fn read(&self) -> &[u32] {
        self.numbers.get(..self.next).unwrap_or(&self.numbers)
    }

    /// One of `0..n`; 0 if `n` is.
    pub fn below(&mut self, n: usize) -> usize {
        let number = match (self.numbers.get(self.next), &mut self.fresh) {
            (Some(number), _) => *number,
            (None, Some(fresh)) => {
                let number = fresh.next_u32();
                self.numbers.push(number);
                number
            }
            (None, None) => return 0,
        };
        self.next += 1;
        number as usize % n.max(1)
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    /// One of `items`, which hold something.
    pub fn one<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// Smaller tapes of a failing case, the most promising first: without a stretch of numbers, or
/// with one of them zero.
pub fn smaller(numbers: &[u32]) -> Vec<Vec<u32>> {
    let mut smaller = vec![];
    let mut stretch = numbers.len() / 2;
    while stretch > 0 {
        for start in (0..numbers.len()).step_by(stretch) {
            let end = (start + stretch).min(numbers.len());
            smaller.push([&numbers[..start], &numbers[end..]].concat());
            if numbers[start..end].iter().any(|number| *number != 0) {
                let mut zeroed = numbers.to_vec();
                zeroed[start..end].fill(0);
                smaller.push(zeroed);
            }
        }
        stretch /= 2;
    }
    smaller
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tape_read_again_makes_the_same_choices() {
        let mut drawn = Tape::of_seed(7);
        let choices: Vec<_> = (1..50).map(|n| drawn.below(n)).collect();
        let mut again = Tape::of(drawn.read().to_vec());
        assert_eq!(choices, (1..50).map(|n| again.below(n)).collect::<Vec<_>>());
        assert_eq!(again.below(10), 0, "past the end");
    }

    #[test]
    fn smaller_tapes_are_shorter_or_hold_more_zeros() {
        let weight = |numbers: &[u32]| (numbers.len(), numbers.iter().filter(|n| **n != 0).count());
        let numbers = [3, 0, 5, 9, 1];
        let all = smaller(&numbers);
        assert!(all.len() > 5);
        assert!(all.iter().all(|tape| weight(tape) < weight(&numbers)));
    }
}
