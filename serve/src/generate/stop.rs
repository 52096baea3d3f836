//! Strings that end a text.

/// Holds back what may become a string that ends the text.
#[derive(Debug, Default)]
pub(super) struct StopStrings {
    stops: Vec<String>,
    held: String,
}

impl StopStrings {
    /// None of these is empty.
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new() }
    }

    /// What of the text is certain, and whether one of the strings ends it there.
    pub fn push(&mut self, piece: &str) -> (String, bool) {
        self.held += piece;
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop)).min();
        if let Some(end) = found {
            self.held.truncate(end);
            return (std::mem::take(&mut self.held), true);
        }
        let may_begin = |at: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..]));
        let starts = self.held.char_indices().map(|(at, _)| at);
        let certain =
            starts.filter(|at| self.held.len() - at < self.longest()).find(may_begin).unwrap_or(self.held.len());
        let rest = self.held.split_off(certain);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// What is held back, when the text has ended.
    pub fn rest(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    fn longest(&self) -> usize {
        self.stops.iter().map(String::len).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text before the first of the strings, and whether there is one.
    fn whole(text: &str, stops: &[String]) -> (String, bool) {
        let end = stops.iter().filter_map(|stop| text.find(stop)).min();
        (text[..end.unwrap_or(text.len())].to_owned(), end.is_some())
    }

    #[test]
    fn pieces_of_any_size_end_where_the_whole_text_does() {
        let words = ["a", "ab", "aab", "\n\n", "é", "bé"];
        for seed in 0..2_000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let text: String = (0..rng.usize(0..20)).map(|_| ["a", "b", "\n", "é"][rng.usize(0..4)]).collect();
            let stops: Vec<String> = (0..rng.usize(0..4)).map(|_| words[rng.usize(0..6)].to_owned()).collect();
            let mut of = StopStrings::new(stops.clone());
            let (mut told, mut has_ended) = (String::new(), false);
            let mut letters = text.chars().peekable();
            while letters.peek().is_some() && !has_ended {
                let piece: String = letters.by_ref().take(rng.usize(1..4)).collect();
                let (certain, ends) = of.push(&piece);
                told += &certain;
                has_ended = ends;
            }
            if !has_ended {
                told += &of.rest();
            }
            assert_eq!((told, has_ended), whole(&text, &stops), "{text:?} until {stops:?}");
        }
    }

    #[test]
    fn no_more_is_held_back_than_may_end_the_text() {
        let mut of = StopStrings::new(vec!["stop".into(), "\n".into()]);
        assert_eq!(of.push("a st"), ("a ".into(), false));
        assert_eq!(of.push("r sto"), ("str ".into(), false));
        assert_eq!(of.push("p!"), (String::new(), true));
    }
}
