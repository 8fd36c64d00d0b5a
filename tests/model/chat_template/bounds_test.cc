// Untrusted templates: limits of a rendering, and error messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/chat_template/render_util.h"

namespace ovq::jinja::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Repeat(std::string_view text, int n) {
  std::string repeated;
  for (int i = 0; i < n; ++i) repeated += text;
  return repeated;
}

void ExpectError(std::string_view text, absl::StatusCode code, const std::string& begin,
                 const Json& variables = Json::object(), const RenderLimits& limits = {}) {
  const absl::StatusOr<std::string> rendered = Render(text, variables, limits);
  ASSERT_FALSE(rendered.ok()) << text;
  EXPECT_EQ(rendered.status().code(), code) << rendered.status();
  EXPECT_THAT(std::string(rendered.status().message()), StartsWith(begin)) << text;
}

TEST(ChatTemplateErrors, NameTheLineAndTheCause) {
  constexpr absl::StatusCode kBad = absl::StatusCode::kDataLoss;
  constexpr absl::StatusCode kUnfit = absl::StatusCode::kInvalidArgument;
  ExpectError("a\n{{ 'x }}", kBad, "template, line 2: syntax: a string has no end");
  ExpectError("\n\n{% if a %}x", kBad,
              "template, line 3: syntax: expected a tag elif or else or endif, got the end");
  ExpectError("{{ a b }}", kBad, "template, line 1: syntax: expected '}}', got 'b'");
  ExpectError("{% break %}", kBad, "template, line 1: syntax: 'break' outside of a loop");
  ExpectError("{{ x | nofilter }}", kBad, "template, line 1: syntax: there is no filter named");
  ExpectError("{{ 99999999999999999999 }}", kBad,
              "template, line 1: syntax: an integer of more than 64 bits");
  ExpectError("{% set none = 1 %}", kBad, "template, line 1: syntax: cannot assign to none");
  ExpectError("{% include 'a' %}", kBad, "template, line 1: 'include' is for templates that load");
  ExpectError("{{ '\xff' }}", kBad, "template: byte 4 is not valid UTF-8");
  ExpectError(std::string(kMaxTemplateBytes + 1, 'a'), kBad, "template: more than 1048576 bytes");
  ExpectError("{% if true %}\n{{ a.b.c }}{% endif %}", kUnfit,
              "template, line 2: not there: 'a' is undefined");
  ExpectError("{{\n a.b.c }}", kUnfit,
              "template, line 2: not there: 'dict object' has no attribute",
              {{"a", Json::object()}});
  ExpectError("{{ 1 +\n 'a' }}", kUnfit, "template, line 1: TypeError: unsupported operand");
  ExpectError("\n{{ raise_exception('no\nway') }}", kUnfit,
              "template, line 2: the template refuses: no\nway");
  ExpectError("{{ x }}", kUnfit, "template, line 1: a variable is not valid UTF-8",
              {{"x", "\xff"}});
}

TEST(ChatTemplateErrors, UnknownFiltersOfUnusedBranchesAreFine) {
  EXPECT_EQ(Render("{% if false %}{{ x | nofilter }}{% endif %}a").value(), "a");
  ExpectError("{% if true %}{{ x | nofilter }}{% endif %}", absl::StatusCode::kDataLoss,
              "template, line 1: syntax: there is no filter named 'nofilter'");
}

// Each of these would take minutes or gigabytes without limits.
TEST(ChatTemplateBounds, EndWhatAsksForTooMuch) {
  const std::vector<std::string> greedy = {
      "{{ 'a' * 1000000000000 }}",
      "{{ 1000000000 * [1, 2, 3] }}",
      "{{ range(1000000000) }}",
      "{{ range(-9223372036854775807, 9223372036854775807) }}",
      "{{ '%1000000000d' | format(1) }}",
      "{{ '%.1000000000f' | format(1.5) }}",
      "{{ '{:>1000000000}'.format('a') }}",
      "{{ 'a b' | indent(1000000000) }}",
      "{{ [1] | tojson(indent=1000000000) }}",
      "{{ [1] | batch(1000000000, 0) | list }}",
      "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
      "{{ ('a' * 1000000) | replace('', 'b' * 1000) }}",
      "{{ (['a' * 1000000] * 1000000) | join }}",
      "{{ ['a' * 1000000] * 1000000 }}",
      "{{ (['a' * 1000000] * 1000000) | tojson }}",
      "{{ 2 ** 64 }}",
      "{{ 9223372036854775807 + 1 }}",
      "{{ 1e30 | int }}",
      "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}"
      "{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}"
      "{% endfor %}{{ ns.x }}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
      "{% endfor %}{{ ns.x == ns.x[:] }}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}"
      "{% endfor %}{{ ns.x }}",
      "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
      "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
      "{% for i in range(100000) %}{{ 'a' * 1000 }}{% endfor %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f(x) %}{{ x }}{{ f(x) }}{{ f(x) }}{% endmacro %}{{ f('a') }}",
      "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{% set x = 'a' * 4000000 %}{% for i in range(100000) %}{{ x.find('b') }}{% endfor %}",
      "{% set x = 'ab' * 1000000 %}{{ x.strip('ab' * 1000000) }}",
  };
  for (const std::string& text : greedy) {
    SCOPED_TRACE(text);
    ExpectError(text, absl::StatusCode::kResourceExhausted, "template, line 1: limit: ");
  }
}

TEST(ChatTemplateBounds, AreThoseThatAreGiven) {
  const std::string loop = "{% for i in range(100) %}ab{% endfor %}";
  EXPECT_EQ(Render(loop).value(), Repeat("ab", 100));
  ExpectError(loop, absl::StatusCode::kResourceExhausted,
              "template, line 1: limit: more than 50 steps", {}, {.max_steps = 50});
  ExpectError(loop, absl::StatusCode::kResourceExhausted,
              "template, line 1: limit: more than 199 bytes of text", {},
              {.max_output_bytes = 199});
  EXPECT_TRUE(Render(loop, Json::object(), {.max_output_bytes = 200}).ok());
  ExpectError(loop, absl::StatusCode::kResourceExhausted,
              "template, line 1: limit: more than 5000 bytes of values", {},
              {.max_value_bytes = 5000});
  ExpectError("{{ ((1 + 2) * 3)[4] }}", absl::StatusCode::kResourceExhausted,
              "template, line 1: limit: nested more than 3 levels deep", {}, {.max_depth = 3});
}

TEST(ChatTemplateBounds, NestingOfTemplatesAndVariables) {
  const std::pair<std::string, std::string> brackets[] = {
      {"(", ")"},           {"[", "]"},    {"{1: ", "}"}, {"- ", ""},   {"not ", ""},
      {"1 if 1 else ", ""}, {"x.y[", "]"}, {"f(", ")"},   {"1|d(", ")"}};
  for (const auto& [open, close] : brackets) {
    const absl::StatusOr<std::string> rendered =
        Render("{{ " + Repeat(open, 50'000) + "1" + Repeat(close, 50'000) + " }}");
    EXPECT_THAT(std::string(rendered.status().message()), HasSubstr("nested more than 100 levels"))
        << open;
  }
  for (const std::string open : {"{% if 1 %}", "{% for x in y %}", "{% macro f() %}", "{% set x %}",
                                 "{% with %}", "{% filter e %}"}) {
    const absl::StatusOr<std::string> rendered = Render(Repeat(open, 10'000));
    EXPECT_THAT(std::string(rendered.status().message()), HasSubstr("nested more than 100 levels"))
        << open;
  }
  // Long chains without brackets: the tree is deep, and so is its evaluation.
  for (const std::string link : {"+ 1 ", "| d(1) ", ".x ", "and 1 ", "** 1 ", "is odd "}) {
    const absl::StatusOr<std::string> rendered = Render("{{ 1 " + Repeat(link, 10'000) + "}}");
    EXPECT_FALSE(rendered.ok()) << link;
  }
  EXPECT_EQ(Render("{{ 1 " + Repeat("+ 1 ", 300) + "}}").value(), "301");
  EXPECT_EQ(Render("{{ 1 " + Repeat("~ 1 ", 9'999) + "}}").value(), std::string(10'000, '1'));
  Json deep = 1;
  for (int i = 0; i < 1000; ++i) deep = Json::array({deep});
  ExpectError("a", absl::StatusCode::kResourceExhausted,
              "template, line 1: limit: nested more than 400 levels deep", {{"x", deep}});
}

// Mutated templates fail or render, and nothing else.
TEST(ChatTemplateBounds, AnyTextIsParsedOrRefused) {
  const std::string text =
      "{%- macro f(a, b='d', *x) %}{{ a[1:-1] ~ b|trim|tojson(indent=2) }}{% endmacro %}\n"
      "{%- for m in messages if m.role != 'x' recursive %}{{ loop.index0 is odd and not loop.last "
      "}}"
      "{{ '<' + m['content'].split('\\n')[-1] }}{% else %}{# c #}{% break %}{% endfor %}"
      "{% set ns = namespace(a=1, b=[1, (2,), {'k': 0x1f, }]) %}{% set ns.a = -ns.b[0] // 2 ** 3 %}"
      "{% call(x) f(*[1], **{'b': 2}) %}{{ caller() }}{% endcall %}{% raw %}{{{% endraw %}"
      "{{ '%-5s|%05.1f' | format('a', 1) }}{{ '{0[a].b:>{1}}'.format(1) }}{{ 'a' if x is in y }}";
  const Json variables = {{"messages", {{{"role", "user"}, {"content", "a\nb"}}}}};
  const RenderLimits limits = {.max_steps = 100'000, .max_value_bytes = 1 << 20};
  for (size_t at = 0; at < text.size(); ++at) {
    (void)Render(text.substr(0, at), variables, limits);
    (void)Render(text.substr(at), variables, limits);
  }
  uint32_t random = 1;
  const auto next = [&](size_t below) {
    random = random * 1664525 + 1013904223;
    return (random >> 8) % below;
  };
  int n_rendered = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string stirred = text;
    for (size_t n = next(4) + 1; n > 0; --n) {
      const size_t from = next(stirred.size()), to = next(stirred.size());
      const std::string piece = stirred.substr(from, next(12) + 1);
      stirred.replace(to, next(3) == 0 ? 0 : piece.size(), piece);
    }
    n_rendered += Render(stirred, variables, limits).ok();
  }
  EXPECT_LT(n_rendered, 20'000);
}

}  // namespace
}  // namespace ovq::jinja::test
