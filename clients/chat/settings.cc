#include "clients/chat/settings.h"

#include <google/protobuf/text_format.h>

#include <initializer_list>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace ovq::clients {
namespace {

// The field that holds a setting and its message within the turn; both null if no setting has the
// name.
struct SettingField {
  google::protobuf::Message* message = nullptr;
  const google::protobuf::FieldDescriptor* field = nullptr;
};

SettingField FindSettingField(v1::ChatTurn& turn, const std::string& name) {
  const std::string field_name =
      name == "stop" ? "stop_strings" : absl::StrReplaceAll(name, {{"-", "_"}});
  for (google::protobuf::Message* message : std::initializer_list<google::protobuf::Message*>{
           turn.mutable_sampling(), turn.mutable_stop(), turn.mutable_output()}) {
    const auto* field = message->GetDescriptor()->FindFieldByName(field_name);
    if (field != nullptr) return {message, field};
  }
  return {};
}

std::string ValueText(const SettingField& of) {
  const auto* reflection = of.message->GetReflection();
  std::vector<std::string> values;
  const bool repeated = of.field->is_repeated();
  const int count = repeated ? reflection->FieldSize(*of.message, of.field)
                             : reflection->HasField(*of.message, of.field);
  for (int i = 0; i < count; ++i) {
    std::string value;
    google::protobuf::TextFormat::PrintFieldValueToString(*of.message, of.field, repeated ? i : -1,
                                                          &value);
    values.push_back(value);
  }
  return absl::StrJoin(values, ", ");
}

}  // namespace

void AddSettings(Flags& flags, v1::ChatTurn& turn) {
  v1::SamplingParams& sampling = *turn.mutable_sampling();
  v1::StopConditions& stop = *turn.mutable_stop();
  v1::OutputOptions& output = *turn.mutable_output();
  flags.Add("max-tokens", "N", NumberTo<uint32_t>([&](auto n) { stop.set_max_tokens(n); }),
            "longest answer", "256");
  flags.Add("temperature", "T", NumberTo<float>([&](auto t) { sampling.set_temperature(t); }),
            "0 = always the likeliest token", "1");
  flags.Add("top-k", "K", NumberTo<uint32_t>([&](auto k) { sampling.set_top_k(k); }),
            "draw from the K likeliest tokens; 0 = all", "0");
  flags.Add("top-p", "P", NumberTo<float>([&](auto p) { sampling.set_top_p(p); }),
            "draw from the likeliest tokens that add up to P", "1");
  flags.Add("min-p", "P", NumberTo<float>([&](auto p) { sampling.set_min_p(p); }),
            "drop tokens below P times the likeliest one", "0");
  flags.Add("typical-p", "P", NumberTo<float>([&](auto p) { sampling.set_typical_p(p); }),
            "draw from the tokens of about the expected surprise that add up to P", "1");
  flags.Add("repetition-penalty", "X",
            NumberTo<float>([&](auto x) { sampling.set_repetition_penalty(x); }),
            "above 1: less of what prompt and answer have held", "1");
  flags.Add("presence-penalty", "X",
            NumberTo<float>([&](auto x) { sampling.set_presence_penalty(x); }),
            "above 0: less of what the answer has held", "0");
  flags.Add("frequency-penalty", "X",
            NumberTo<float>([&](auto x) { sampling.set_frequency_penalty(x); }),
            "above 0: the less, the more often the answer has held it", "0");
  flags.Add("seed", "N", NumberTo<uint64_t>([&](auto n) { sampling.set_seed(n); }),
            "of the random numbers", "drawn by the server");
  flags.Add("stop", "TEXT",
            ReadTo([&](const auto& text) { stop.add_stop_strings(text); }, "a text", ParseText),
            "end the answer before this text; may be given several times");
  flags.AddSwitch(
      "ignore-eos", [&] { stop.set_ignore_eos(true); }, "never draw the end-of-sequence token");
  flags.AddSwitch(
      "logprobs", [&] { output.set_logprobs(true); },
      "list every token's id and log-probability on stderr after the answer");
}

absl::Status ChangeSetting(v1::ChatTurn& turn, const std::string& name, const std::string& value) {
  Flags flags;
  AddSettings(flags, turn);
  const SettingField of = FindSettingField(turn, name);
  if (of.field == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("no setting ", name, "; /set lists them"));
  }
  if (value == "default") {
    of.message->GetReflection()->ClearField(of.message, of.field);
    return absl::OkStatus();
  }
  if (of.field->type() != google::protobuf::FieldDescriptor::TYPE_BOOL) {
    return flags.Read(std::vector<std::string>{absl::StrCat("--", name, "=", value)});
  }
  if (value != "yes") {
    return absl::InvalidArgumentError(absl::StrCat(name, ": expected yes or default"));
  }
  return flags.Read(std::vector<std::string>{absl::StrCat("--", name)});
}

std::string SettingsText(v1::ChatTurn& turn) {
  Flags flags;
  AddSettings(flags, turn);
  std::string text;
  for (const Setting& setting : flags.settings()) {
    const std::string value = ValueText(FindSettingField(turn, setting.name));
    absl::StrAppendFormat(&text, "  %-19s %s\n", setting.name,
                          value.empty() ? absl::StrCat(setting.value, " (default)") : value);
  }
  return text;
}

}  // namespace ovq::clients
