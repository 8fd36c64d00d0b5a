// Templates and their output from Jinja2 3.1, configured as in Transformers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "model/chat_template/chat_template.h"
#include "tests/folders.h"
#include "tests/model/chat_template/render_util.h"

namespace ovq::jinja::test {
namespace {

Json ReadJson(const std::string& path) {
  return Json::parse(ReadFile(path, size_t{16} << 20).value());
}

// The beginning of the message of each kind of error, after its line.
std::string ErrorPrefix(const std::string& kind) {
  if (kind == "raise_exception") return "the template refuses: ";
  if (kind == "undefined") return "not there: ";
  if (kind == "security") return "forbidden: ";
  return kind == "syntax" ? "syntax: " : "";
}

void CheckCase(const std::string& text, const Json& c) {
  const absl::StatusOr<std::string> rendered = Render(text, c["variables"]);
  if (c.contains("text")) {
    ASSERT_TRUE(rendered.ok()) << rendered.status();
    EXPECT_EQ(*rendered, c["text"].get<std::string>());
    return;
  }
  const std::string kind = c["error"];
  const std::string message(rendered.status().message());
  ASSERT_FALSE(rendered.ok()) << *rendered;
  EXPECT_THAT(message, ::testing::MatchesRegex("template, line [0-9]+: .*"));
  const std::string behind = message.substr(message.find(": ") + 2);
  EXPECT_THAT(behind, ::testing::StartsWith(ErrorPrefix(kind)));
  if (kind == "type") {
    for (const char* other : {"the template refuses: ", "not there: ", "forbidden: ", "syntax: "}) {
      EXPECT_FALSE(absl::StartsWith(behind, other)) << message;
    }
  }
  if (kind == "raise_exception") {
    EXPECT_EQ(behind, ErrorPrefix(kind) + c["message"].get<std::string>());
  }
}

TEST(ChatTemplateFixtures, Syntax) {
  const Json cases = ReadJson(GoldenFolder() + "/chat_template/syntax.json");
  ASSERT_EQ(cases.size(), 165u);
  for (const Json& c : cases) {
    SCOPED_TRACE(c["template"].get<std::string>());
    CheckCase(c["template"], c);
  }
}

// The template of models/scripted-chat writes what its model was trained on, calls as clients of
// OpenAI's API send them included.
TEST(ChatTemplateFixtures, ScriptedChat) {
  const std::string path = ModelsFolder() + "/scripted-chat/chat_template.jinja";
  const std::string text = ReadFile(path, kMaxTemplateBytes).value();
  const Json cases = ReadJson(GoldenFolder() + "/chat_template/scripted_chat.json");
  ASSERT_EQ(cases.size(), 24u);
  for (const Json& c : cases) CheckCase(text, c);
}

// Public templates are other people's text, and not in this repository.
class PublicTemplates : public ::testing::TestWithParam<const char*> {};
TEST_P(PublicTemplates, GiveTheTextsOfOthers) {
  const char* root = std::getenv("OVQ_CHAT_TEMPLATE_FIXTURES");
  if (root == nullptr) GTEST_SKIP() << "OVQ_CHAT_TEMPLATE_FIXTURES is not set";
  const std::string folder = absl::StrCat(root, "/", GetParam());
  const std::string text = ReadFile(folder + "/chat_template.jinja", kMaxTemplateBytes).value();
  const Json cases = ReadJson(folder + "/cases.json")["cases"];
  ASSERT_GE(cases.size(), 6u);
  for (const Json& c : cases) {
    SCOPED_TRACE(c["name"].get<std::string>());
    CheckCase(text, c);
  }
}
INSTANTIATE_TEST_SUITE_P(All, PublicTemplates,
                         ::testing::Values("granite-4.0-h", "qwen3", "qwen3.5", "llama-3",
                                           "llama-3.2", "command-r7b", "smollm3", "chatml",
                                           "gemma-2", "phi-3", "mistral-nemo",
                                           "deepseek-r1-distill", "olmo-3.1"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase_if(name, [](char c) { return c == '-' || c == '.'; });
                           return name;
                         });

}  // namespace
}  // namespace ovq::jinja::test
