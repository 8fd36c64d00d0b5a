// Grammars of forms that benchmarks have in common. Each constant is rules of GBNF, to which a
// benchmark adds its root.
#pragma once

namespace ovq::bench {

// `object` is any JSON object.
inline constexpr char kObjectRules[] = R"gbnf(
object ::= "{" ws (member ("," ws member)*)? "}"
member ::= string ws ":" ws value ws
array ::= "[" ws (value ws ("," ws value ws)*)? "]"
value ::= object | array | string | number | "true" | "false" | "null"
string ::= "\"" ([^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
number ::= "-"? ("0" | [1-9] [0-9]{0,19}) ("." [0-9]{1,20})? ([eE] [-+]? [0-9]{1,3})?
ws ::= " "? | "\n" " "{0,32}
)gbnf";

// `record` is a JSON object of three properties, whose strings are counted.
inline constexpr char kRecordRules[] = R"gbnf(
record ::= "{\"name\": " string ", \"tags\": [" tags "], \"age\": " [1-9] [0-9]{0,2} "}"
tags ::= string (", " string){0,9}
string ::= "\"" ([^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})){0,1000} "\""
)gbnf";

// `text` is anything that has no "</".
inline constexpr char kTextRules[] = R"gbnf(
text ::= ([^<] | "<" [^/])*
)gbnf";

}  // namespace ovq::bench
