//! Filters, tests and functions that pay for what they read and make. Every one that a template can call is put in here.

use minijinja::functions::Function;
use minijinja::value::{FunctionArgs, FunctionResult, Rest};
use minijinja::{filters, functions, tests, Environment, Error, State, Value};

use super::{size, weight};

/// Those that compare, and so read all that is inside of what they are given, several times.
const COMPARING: &[&str] = &["sort", "unique", "groupby", "min", "max", "dictsort", "sum"];

/// Tests that compare, by all their names.
const COMPARING_TESTS: &[&str] = &[
    "eq",
    "equalto",
    "==",
    "ne",
    "!=",
    "lt",
    "lessthan",
    "<",
    "le",
    "<=",
    "gt",
    "greaterthan",
    ">",
    "ge",
    ">=",
    "in",
    "sameas",
];

/// Filters that make a list of a text's letters.
const LISTING: &[&str] = &[
    "list",
    "sort",
    "unique",
    "groupby",
    "map",
    "select",
    "reject",
    "selectattr",
    "rejectattr",
    "batch",
    "slice",
    "min",
    "max",
    "sum",
    "join",
];

/// An environment with bounds around whatever is put into it.
pub(super) struct Operations<'a>(&'a mut Environment<'static>);

impl<'a> Operations<'a> {
    /// Puts in what minijinja has.
    pub fn new(environment: &'a mut Environment<'static>) -> Self {
        let mut operations = Self(environment);
        operations.add_builtins();
        operations
    }

    pub fn add_filter<F, Rv, Args>(&mut self, name: &'static str, filter: F)
    where
        F: Function<Rv, Args>,
        Rv: FunctionResult,
        Args: for<'b> FunctionArgs<'b>,
    {
        let filter = Value::from_function(filter);
        self.0.add_filter(name, move |state: &State, args: Rest<Value>| bounded(&filter, name, state, &args));
    }

    /// An operator of the rewriter's, which pays itself.
    pub fn add_operator<F, Rv, Args>(&mut self, name: &'static str, operator: F)
    where
        F: Function<Rv, Args>,
        Rv: FunctionResult,
        Args: for<'b> FunctionArgs<'b>,
    {
        self.0.add_filter(name, operator);
    }

    pub fn add_function<F, Rv, Args>(&mut self, name: &'static str, function: F)
    where
        F: Function<Rv, Args>,
        Rv: FunctionResult,
        Args: for<'b> FunctionArgs<'b>,
    {
        let function = Value::from_function(function);
        self.0.add_function(name, move |state: &State, args: Rest<Value>| bounded(&function, name, state, &args));
    }

    pub fn add_test<F, Rv, Args>(&mut self, name: &'static str, test: F)
    where
        F: Function<Rv, Args>,
        Rv: FunctionResult,
        Args: for<'b> FunctionArgs<'b>,
    {
        let test = Value::from_function(test);
        // Most look at the kind of a value alone.
        let is_comparing = COMPARING_TESTS.contains(&name);
        self.0.add_test(name, move |state: &State, args: Rest<Value>| {
            match is_comparing {
                true => args.iter().try_for_each(weight::compared)?,
                false => args.iter().filter(|value| value.as_str().is_some()).try_for_each(weight::read)?,
            }
            test.call(state, &args)
        });
    }

    pub fn remove_filter(&mut self, name: &str) {
        self.0.remove_filter(name);
    }

    fn add_builtins(&mut self) {
        // It writes all that a template holds, however deep that is.
        self.0.remove_global("debug");
        self.add_function("namespace", functions::namespace);
        self.add_filter("safe", filters::safe);
        self.add_filter("reverse", filters::reverse);
        self.add_filter("default", filters::default);
        self.add_filter("d", filters::default);
        self.add_filter("abs", filters::abs);
        self.add_filter("attr", filters::attr);
        self.add_filter("first", filters::first);
        self.add_filter("last", filters::last);
        self.add_filter("sort", filters::sort);
        self.add_filter("list", filters::list);
        self.add_filter("select", filters::select);
        self.add_filter("reject", filters::reject);
        self.add_filter("selectattr", filters::selectattr);
        self.add_filter("rejectattr", filters::rejectattr);
        self.add_filter("map", filters::map);
        self.add_filter("groupby", filters::groupby);
        self.add_filter("unique", filters::unique);
        for name in ["eq", "equalto", "=="] {
            self.add_test(name, tests::is_eq);
        }
        for name in ["ne", "!="] {
            self.add_test(name, tests::is_ne);
        }
        for name in ["lt", "lessthan", "<"] {
            self.add_test(name, tests::is_lt);
        }
        for name in ["le", "<="] {
            self.add_test(name, tests::is_le);
        }
        for name in ["gt", "greaterthan", ">"] {
            self.add_test(name, tests::is_gt);
        }
        for name in ["ge", ">="] {
            self.add_test(name, tests::is_ge);
        }
        self.add_test("in", tests::is_in);
        self.add_test("sameas", tests::is_sameas);
        self.add_test("startingwith", tests::is_startingwith);
        self.add_test("endingwith", tests::is_endingwith);
        self.add_test("lower", tests::is_lower);
        self.add_test("upper", tests::is_upper);
    }
}

/// Calls something that pays for what it is given and for what it gives.
fn bounded(function: &Value, name: &str, state: &State, args: &[Value]) -> Result<Value, Error> {
    let (is_comparing, makes_lists) = (COMPARING.contains(&name), LISTING.contains(&name));
    for (at, arg) in args.iter().enumerate() {
        match arg.as_str().is_some() || makes_lists {
            true => weight::worked(arg)?,
            false => weight::read(arg)?,
        }
        if is_comparing {
            weight::sorted(arg)?;
        }
        // A text is a list of its letters here.
        if at == 0 && makes_lists {
            size::check_list(arg.as_str().map_or(0, str::len))?;
        }
        if matches!(name, "namespace" | "cycler") {
            weight::check_held(arg)?;
        }
    }
    weight::made(function.call(state, args)?)
}
