//! The pages of a cache: which texts have them, and of which tokens they have keys and values.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use opara_candle::ops::PAGE;

/// The pages of a cache. Texts whose prompts begin alike share those that have the beginning (Kwon et al., "PagedAttention", 2023),
/// which is compared token by token.
#[derive(Clone)]
pub(super) struct Pages(Arc<Mutex<Books>>);

/// The pages of a text, in the order of its tokens. They are free again when this is dropped.
pub(super) struct Held {
    of: Pages,
    ids: Vec<u32>,
    /// How many of the first ones are entered, and what stands before the others.
    entered: usize,
    before: Before,
}

/// What comes before the tokens of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Before {
    /// Nothing: they are a tenant's first ones.
    Tenant(u64),
    /// The tokens of an entry, by its number.
    Entry(u64),
}

/// The tokens that a page has keys and values of.
type Key = (Before, [u32; PAGE]);

/// A page whose tokens are known.
#[derive(Debug, Clone, Copy)]
struct Entry {
    page: u32,
    /// No other entry ever has it.
    number: u64,
}

#[derive(Debug)]
struct Page {
    /// Texts that have it.
    users: usize,
    /// Of what is in it, if it is entered.
    key: Option<Box<Key>>,
    /// Counts releases.
    released: u64,
}

struct Books {
    /// The first of them are no text's.
    pages: Vec<Page>,
    nobodys: usize,
    /// Pages that no text has: those that are not entered first, then those that were released first.
    free: BTreeSet<(bool, u64, u32)>,
    entries: HashMap<Key, Entry>,
    numbers: u64,
}

impl Pages {
    /// Of so many pages, the first of which are no text's.
    pub fn new(pages: usize, nobodys: usize) -> Self {
        let page = |page| Page { users: 0, key: None, released: page };
        Self(Arc::new(Mutex::new(Books {
            pages: (0..pages as u64).map(page).collect(),
            nobodys: nobodys.min(pages),
            free: (nobodys..pages).map(|page| (false, page as u64, page as u32)).collect(),
            entries: HashMap::new(),
            numbers: pages as u64,
        })))
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pages that texts may have.
    pub fn count(&self) -> usize {
        let books = self.books();
        books.pages.len() - books.nobodys
    }

    /// Pages that no text has.
    pub fn free(&self) -> usize {
        self.books().free.len()
    }

    /// No pages, for a text of a tenant.
    pub fn none(&self, tenant: u64) -> Held {
        Held { of: self.clone(), ids: Vec::new(), entered: 0, before: Before::Tenant(tenant) }
    }

    /// The pages that have the beginning of a tenant's tokens: a number that `multiple` divides.
    pub fn shared(&self, tenant: u64, tokens: &[u32], multiple: usize) -> Held {
        let mut books = self.books();
        let mut found: Vec<Entry> = Vec::new();
        let mut before = Before::Tenant(tenant);
        for tokens in tokens.as_chunks::<PAGE>().0 {
            let Some(entry) = books.entries.get(&(before, *tokens)).copied() else { break };
            before = Before::Entry(entry.number);
            found.push(entry);
        }
        found.truncate(found.len() / multiple.max(1) * multiple.max(1));
        found.iter().for_each(|entry| books.hold(entry.page));
        drop(books);
        let before = found.last().map_or(Before::Tenant(tenant), |entry| Before::Entry(entry.number));
        let ids: Vec<u32> = found.into_iter().map(|entry| entry.page).collect();
        Held { of: self.clone(), entered: ids.len(), ids, before }
    }

    /// Forgets what is in pages: nothing is shared with texts that come.
    pub fn forget(&self) {
        let mut books = self.books();
        books.entries.clear();
        books.pages.iter_mut().for_each(|page| page.key = None);
        books.free = books.free.iter().map(|(_, released, page)| (false, *released, *page)).collect();
    }
}

impl Books {
    fn hold(&mut self, page: u32) {
        let of = &mut self.pages[page as usize];
        if of.users == 0 {
            self.free.remove(&(of.key.is_some(), of.released, page));
        }
        of.users += 1;
    }

    fn release(&mut self, page: u32) {
        self.numbers += 1;
        let of = &mut self.pages[page as usize];
        of.users -= 1;
        if of.users == 0 {
            of.released = self.numbers;
            self.free.insert((of.key.is_some(), of.released, page));
        }
    }

    /// A page that no text has, for a new user.
    fn take(&mut self) -> Option<u32> {
        let (_, _, page) = self.free.first().copied()?;
        self.hold(page);
        if let Some(key) = self.pages[page as usize].key.take() {
            self.entries.remove(&*key);
        }
        Some(page)
    }
}

impl Held {
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Places of these pages.
    pub fn places(&self) -> usize {
        self.ids.len() * PAGE
    }

    /// Has pages for so many places, where others are left `reserved`. False if there are too few pages: then it has no more than before, and
    /// nothing that is entered is forgotten.
    pub fn grow(&mut self, places: usize, reserved: usize) -> bool {
        let more = places.div_ceil(PAGE).saturating_sub(self.ids.len());
        let mut books = self.of.books();
        let is_enough = books.free.len() >= more + if more > 0 { reserved } else { 0 };
        if is_enough {
            self.ids.extend((0..more).map_while(|_| books.take()));
        }
        is_enough
    }

    /// Enters the pages that a prompt's tokens fill, for others to share. `self` is of these tokens, which were read.
    pub fn enter(&mut self, tokens: &[u32]) {
        let mut books = self.of.books();
        for (tokens, page) in tokens.as_chunks::<PAGE>().0.iter().zip(&self.ids).skip(self.entered) {
            let key = (self.before, *tokens);
            books.numbers += 1;
            let own = Entry { page: *page, number: books.numbers };
            let entry = *books.entries.entry(key).or_insert(own);
            if entry.number == own.number {
                books.pages[*page as usize].key = Some(Box::new(key));
            }
            // Another page may have these tokens, too: what follows is entered behind that one.
            self.before = Before::Entry(entry.number);
            self.entered += 1;
        }
    }
}

impl Drop for Held {
    /// The last pages first, so that they are the first to have other contents: without those before them nobody finds them.
    fn drop(&mut self) {
        let mut books = self.of.books();
        self.ids.iter().rev().for_each(|page| books.release(*page));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const PAGES: usize = 12;
    const NOBODYS: usize = 2;

    /// The tokens of a text that is one of few, in pages that are one of two: texts begin alike.
    fn tokens(of: &mut fastrand::Rng) -> Vec<u32> {
        let pages = of.usize(0..6);
        (0..pages).flat_map(|page| vec![(page * 2 + usize::from(of.u8(0..4) == 0)) as u32; PAGE]).collect()
    }

    /// A text, and how many of its tokens were read.
    struct Text {
        tenant: u64,
        tokens: Vec<u32>,
        held: Held,
    }

    /// What is in each page, as a device would have it: the tenant and all tokens up to its last one.
    type Contents = BTreeMap<u32, (u64, Vec<u32>)>;

    fn check(pages: &Pages, texts: &[Text], contents: &Contents, at: &str) {
        let mut users = BTreeMap::<u32, usize>::new();
        texts.iter().flat_map(|text| text.held.ids()).for_each(|page| *users.entry(*page).or_default() += 1);
        assert!(users.keys().all(|page| (NOBODYS..PAGES).contains(&(*page as usize))), "{at}");
        assert_eq!(pages.free(), PAGES - NOBODYS - users.len(), "no page is lost, {at}");
        for text in texts {
            for (at_page, page) in text.held.ids().iter().enumerate() {
                let end = (at_page + 1) * PAGE;
                if end <= text.tokens.len() {
                    let own = (text.tenant, text.tokens[..end].to_vec());
                    assert_eq!(contents.get(page), Some(&own), "page {page} is another text's, {at}");
                } else {
                    assert_eq!(users[page], 1, "a page that is written to is one text's, {at}");
                }
            }
        }
        let books = pages.books();
        for (key, entry) in &books.entries {
            assert_eq!(books.pages[entry.page as usize].key.as_deref(), Some(key), "{at}");
        }
    }

    #[test]
    fn pages_are_shared_by_texts_that_begin_alike_and_by_no_others() {
        let mut shared = 0;
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let pages = Pages::new(PAGES, NOBODYS);
            let (mut texts, mut contents) = (Vec::<Text>::new(), Contents::new());
            for step in 0..400 {
                let at = format!("step {step} of seed {seed}");
                match random.u8(0..10) {
                    0..5 => {
                        let (tenant, tokens, multiple) = (random.u64(0..2), tokens(&mut random), random.usize(1..3));
                        let mut held = pages.shared(tenant, &tokens, multiple);
                        shared += held.ids().len();
                        assert!(held.ids().len().is_multiple_of(multiple), "{at}");
                        let (free, before) = (pages.free(), held.ids().len());
                        let places = tokens.len() + random.usize(0..PAGE);
                        let needed = places.div_ceil(PAGE).saturating_sub(before);
                        assert_eq!(held.grow(places, 0), needed <= free, "{at}");
                        assert_eq!(held.ids().len() - before, if needed <= free { needed } else { 0 }, "{at}");
                        let all = held.ids().iter().enumerate().skip(before);
                        let is_there = needed <= free;
                        for (at_page, page) in all {
                            contents
                                .insert(*page, (tenant, tokens[..((at_page + 1) * PAGE).min(tokens.len())].to_vec()));
                        }
                        if is_there {
                            texts.push(Text { tenant, tokens, held });
                        }
                    }
                    5..7 if !texts.is_empty() => {
                        let at = random.usize(0..texts.len());
                        let Text { tokens, held, .. } = &mut texts[at];
                        let read = random.usize(0..=tokens.len());
                        held.enter(&tokens[..read]);
                    }
                    7..10 if !texts.is_empty() => drop(texts.swap_remove(random.usize(0..texts.len()))),
                    _ => {}
                }
                if random.u8(0..100) == 0 {
                    pages.forget();
                    assert!(pages.shared(0, &[0; PAGE], 1).ids().is_empty(), "{at}");
                }
                check(&pages, &texts, &contents, &at);
            }
            drop(texts);
            assert_eq!(pages.free(), pages.count(), "seed {seed}");
        }
        assert!(shared > 1000, "{shared} pages were shared");
    }

    #[test]
    fn the_beginning_stays_longest() {
        let pages = Pages::new(5, 1);
        let tokens: Vec<u32> = (0..3 * PAGE as u32).collect();
        let mut text = pages.shared(7, &tokens, 1);
        assert!(text.ids().is_empty() && text.grow(tokens.len(), 0));
        text.enter(&tokens);
        let first = text.ids().to_vec();
        drop(text);
        // One page has nothing, and another one goes: the last.
        let mut other = pages.none(7);
        assert!(!other.grow(2 * PAGE, 3) && other.grow(2 * PAGE, 2));
        assert_eq!(pages.shared(7, &tokens, 1).ids(), &first[..2]);
        assert!(pages.shared(8, &tokens, 1).ids().is_empty(), "another tenant's");
        assert!(!other.grow(5 * PAGE, 0), "there are four");
        assert_eq!((other.places(), pages.free()), (2 * PAGE, 2));
    }
}
