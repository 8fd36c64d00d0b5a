#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "model/chat_template/builtin.h"
#include "model/chat_template/operators.h"
#include "model/chat_template/print.h"
#include "model/chat_template/strings.h"

namespace ovq::jinja {
namespace {

template <bool (*kIs)(Value)>
Value CallPredicate(Context&, const Args& args) {
  return Value::Bool(kIs(args[0]));
}

template <Kind kKind>
bool IsKind(Value value) {
  return value.kind() == kKind;
}
bool IsDefined(Value value) { return !value.is_undefined(); }
bool IsNumber(Value value) { return value.is_number(); }
bool IsInteger(Value value) { return value.kind() == Kind::kInt; }
bool IsTrue(Value value) { return value.kind() == Kind::kBool && value.integer() != 0; }
bool IsFalse(Value value) { return value.kind() == Kind::kBool && value.integer() == 0; }
bool IsSequence(Value value) {
  return value.has_places() || value.kind() == Kind::kDict || value.is_undefined();
}
bool IsIterable(Value value) {
  return IsSequence(value) || value.has_items() || value.kind() == Kind::kLoop;
}
bool IsCallable(Value value) {
  return value.kind() == Kind::kCallable || value.kind() == Kind::kLoop || value.is_undefined();
}
bool IsEscaped(Value value) { return value.is_string() && value.string().safe; }

Value CompareTest(Context& e, const Args& args, std::string_view name) {
  return Value::Bool(Compare(e.heap, name, args[0], args[1]));
}
Value IsEqual(Context& e, const Args& args) { return CompareTest(e, args, "=="); }
Value IsUnequal(Context& e, const Args& args) { return CompareTest(e, args, "!="); }
Value IsGreater(Context& e, const Args& args) { return CompareTest(e, args, ">"); }
Value IsGreaterEqual(Context& e, const Args& args) { return CompareTest(e, args, ">="); }
Value IsLess(Context& e, const Args& args) { return CompareTest(e, args, "<"); }
Value IsLessEqual(Context& e, const Args& args) { return CompareTest(e, args, "<="); }
Value IsIn(Context& e, const Args& args) { return CompareTest(e, args, "in"); }

Value HasRest(Context& e, Value value, Value divisor, int64_t rest) {
  return Value::Bool(Equal(e.heap, Binary(e.heap, "%", value, divisor), Value::Int(rest)));
}
Value IsOdd(Context& e, const Args& args) { return HasRest(e, args[0], Value::Int(2), 1); }
Value IsEven(Context& e, const Args& args) { return HasRest(e, args[0], Value::Int(2), 0); }
Value IsDivisibleBy(Context& e, const Args& args) { return HasRest(e, args[0], args[1], 0); }

Value IsSameAs(Context&, const Args& args) {
  const Value a = args[0], b = args[1];
  if (a.kind() != b.kind()) return Value::Bool(false);
  if (a.is_number()) return Value::Bool(a.number() == b.number());
  if (a.is_string()) return Value::Bool(a.text() == b.text());
  return Value::Bool(a.is_none() || a.object() == b.object());
}

template <bool (*kHas)(std::string_view)>
Value HasCase(Context& e, const Args& args) {
  const std::string text = ToText(e.heap, args[0]);
  e.heap.Scan(8 * text.size());
  return Value::Bool(kHas(text));
}

Value IsFilter(Context&, const Args& args) {
  return Value::Bool(args[0].is_string() && FindFilter(args[0].text()) != nullptr);
}
Value IsTest(Context&, const Args& args) {
  return Value::Bool(args[0].is_string() && FindTest(args[0].text()) != nullptr);
}

constexpr Builtin kTests[] = {
    {"defined", "value", CallPredicate<IsDefined>},
    {"undefined", "value", CallPredicate<IsKind<Kind::kUndefined>>},
    {"none", "value", CallPredicate<IsKind<Kind::kNone>>},
    {"string", "value", CallPredicate<IsKind<Kind::kString>>},
    {"number", "value", CallPredicate<IsNumber>},
    {"integer", "value", CallPredicate<IsInteger>},
    {"float", "value", CallPredicate<IsKind<Kind::kFloat>>},
    {"boolean", "value", CallPredicate<IsKind<Kind::kBool>>},
    {"mapping", "value", CallPredicate<IsKind<Kind::kDict>>},
    {"sequence", "value", CallPredicate<IsSequence>},
    {"iterable", "value", CallPredicate<IsIterable>},
    {"callable", "value", CallPredicate<IsCallable>},
    {"escaped", "value", CallPredicate<IsEscaped>},
    {"true", "value", CallPredicate<IsTrue>},
    {"false", "value", CallPredicate<IsFalse>},
    {"eq", "a b", IsEqual},
    {"equalto", "a b", IsEqual},
    {"==", "a b", IsEqual},
    {"ne", "a b", IsUnequal},
    {"!=", "a b", IsUnequal},
    {"gt", "a b", IsGreater},
    {"greaterthan", "a b", IsGreater},
    {">", "a b", IsGreater},
    {"ge", "a b", IsGreaterEqual},
    {">=", "a b", IsGreaterEqual},
    {"lt", "a b", IsLess},
    {"lessthan", "a b", IsLess},
    {"<", "a b", IsLess},
    {"le", "a b", IsLessEqual},
    {"<=", "a b", IsLessEqual},
    {"in", "value seq", IsIn},
    {"odd", "value", IsOdd},
    {"even", "value", IsEven},
    {"divisibleby", "value num", IsDivisibleBy},
    {"sameas", "value other", IsSameAs},
    {"lower", "value", HasCase<IsLowerCase>},
    {"upper", "value", HasCase<IsUpperCase>},
    {"filter", "value", IsFilter},
    {"test", "value", IsTest},
};

}  // namespace

const Builtin* FindTest(std::string_view name) { return FindIn(kTests, name); }

}  // namespace ovq::jinja
