// What readers may compare a field with, by its type; the server's model has the same list, and a test compares them.

export const OPERATORS = {
  "EnumHandler": ["eq", "in"],
  "IntHandler": ["eq", "in", "gt", "gte", "lt", "lte", "between"],
  "FloatHandler": ["eq", "in", "gt", "gte", "lt", "lte", "between"]
};

/** How the operators are called on the page. */
export const WORDS = {
  any: "any", eq: "is", in: "one of", gt: "more than", gte: "at least", lt: "less than", lte: "at most", between: "between",
};

/** Types of free text, for which readers may write `*` for any value. */
export const WILDCARDS = ["ExpverHandler", "StringHandler"];
