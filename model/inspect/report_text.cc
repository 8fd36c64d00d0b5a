#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "model/inspect/inspect.h"

namespace ovq::model {
namespace {

using Json = nlohmann::ordered_json;

// A value on one line, whatever a name in a file holds.
std::string OneLine(const Json& value) {
  std::string line;
  for (const char c : value.is_string() ? value.get<std::string>() : value.dump()) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      absl::StrAppendFormat(&line, "\\x%02x", byte);
    } else {
      line += c;
    }
  }
  return line;
}

std::string TokenizerText(const Json& tokenizer) {
  if (tokenizer.is_null()) return "none";
  std::string text =
      absl::StrCat(OneLine(tokenizer["kind"]), ", ", OneLine(tokenizer["size"]), " tokens");
  const char* before = "; special: ";
  for (const auto& [id, token] : tokenizer["special_tokens"].items()) {
    absl::StrAppend(&text, before, id);
    if (token != "") absl::StrAppend(&text, " ", Quoted(token.get_ref<const std::string&>()));
    before = ", ";
  }
  return text;
}

// A table with the names of the fields at its head.
void AppendSessions(const Json& sessions, std::string& text) {
  const auto append = [&text](const auto& cell, const Json& session) {
    constexpr int kWidths[] = {16, 12, 9, 11, 16, 16};
    const int* width = kWidths;
    for (const auto& [field, value] : session.items()) {
      const bool is_first = width == kWidths;
      absl::StrAppendFormat(&text, "%s%*s", is_first ? "" : " ", *width++, cell(field, value));
    }
    text += '\n';
  };
  append([](const std::string& field, const Json&) { return field; }, sessions.front());
  for (const Json& session : sessions) {
    append([](const std::string&, const Json& value) { return OneLine(value); }, session);
  }
}

}  // namespace

std::string ReportText(const Json& report) {
  const auto line = [&report](const char* field) { return OneLine(report[field]); };
  const auto or_text = [&](const char* field, const char* other) {
    return report[field].is_null() ? other : line(field);
  };
  const Json &layers = report["layers"], &problems = report["problems"];
  std::string text = absl::StrFormat("model       %s\nfamily      %s\nlayers      %d\n",
                                     line("folder"), or_text("family", "unknown"),
                                     layers.empty() ? 0 : layers.back()["last"].get<int64_t>() + 1);
  for (const Json& run : layers) {
    const std::string first = OneLine(run["first"]), last = OneLine(run["last"]);
    absl::StrAppendFormat(&text, "  %-10s%s\n", first == last ? first : first + "-" + last,
                          OneLine(run["type"]));
  }
  std::vector<std::string> types;
  for (const auto& [type, count] : report["tensor_types"].items()) {
    types.push_back(absl::StrCat(OneLine(count), " ", type));
  }
  absl::StrAppend(&text, "parameters  ", line("parameters"));
  if (report["active_parameters"] != report["parameters"]) {
    absl::StrAppend(&text, ", of which a token reads ", line("active_parameters"));
  }
  absl::StrAppendFormat(&text, "\nweights     %s bytes in %s tensors: %s\n", line("weight_bytes"),
                        line("tensors"), types.empty() ? "none" : absl::StrJoin(types, ", "));
  for (const Json& memory : report["memory"]) {
    absl::StrAppendFormat(&text, "in memory   %s bytes with --weights %s", OneLine(memory["bytes"]),
                          OneLine(memory["weights"]));
    if (memory["active_bytes"] != memory["bytes"]) {
      absl::StrAppend(&text, ", of which a token reads ", OneLine(memory["active_bytes"]));
    }
    absl::StrAppend(&text, ", and an embedding of ", OneLine(memory["embedding_bytes"]), "\n");
  }
  if (const Json& quantized = report["quantization"]; !quantized.is_null()) {
    absl::StrAppendFormat(
        &text,
        "quantized   %s matrices (%s); rounded to bf16 they differ by %.2g%%, to int8 by %.2g%%\n",
        OneLine(quantized["matrices"]), OneLine(quantized["method"]),
        100 * quantized["bf16_error"].get<double>(), 100 * quantized["int8_error"].get<double>());
  }
  if (report["skipped_tensors"] != 0) {
    absl::StrAppendFormat(&text, "skipped     %s bytes in %s tensors\n", line("skipped_bytes"),
                          line("skipped_tensors"));
  }
  absl::StrAppendFormat(&text, "dtype       %s\ntokenizer   %s\nchat        %s\n", line("dtype"),
                        OneLine(TokenizerText(report["tokenizer"])),
                        or_text("chat_template", "no template"));
  if (!report["sessions"].empty()) {
    absl::StrAppend(&text, "states in ", line("state_dtype"), "\n");
    AppendSessions(report["sessions"], text);
  }
  for (const Json& note : report["notes"]) absl::StrAppend(&text, "note: ", OneLine(note), "\n");
  absl::StrAppend(&text, "verdict     ", line("verdict"), "\n");
  const size_t n = problems.size();
  absl::StrAppend(
      &text, n == 0 ? "no problems" : absl::StrCat(n, n == 1 ? " problem:" : " problems:"), "\n");
  for (const Json& problem : problems) absl::StrAppend(&text, OneLine(problem), "\n");
  return text;
}

}  // namespace ovq::model
