// Chat formats of model folders.
#include "model/chat_template/chat_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/files.h"
#include "tests/model/chat_template/render_util.h"

namespace ovq::jinja::test {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

class ChatFormatTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "chat_format_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) const {
    ASSERT_TRUE(WriteFile(folder_ + "/" + name, text).ok());
  }
  void Write(const std::string& name, const Json& json) const { Write(name, json.dump()); }
  std::string Text(std::string_view tools = "", bool opens_answer = true) const {
    const std::vector<ChatMessage> messages = {{.role = "user", .content = "Hi"}};
    return ChatFormat::Load(folder_)
        .value()
        ->Render({.messages = messages, .tools_json = tools, .opens_answer = opens_answer},
                 TestNow())
        .value();
  }
  std::string Error() const {
    return std::string(ChatFormat::Load(folder_).status().message()).substr(folder_.size());
  }

  std::string folder_;
};

constexpr char kTemplate[] =
    "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if tools %}{{ tools|tojson }}{% endif %}{{ pad_token is defined }}"
    "{% if add_generation_prompt %}>{% endif %}{{ documents is none }}";

TEST_F(ChatFormatTest, AFolderNeedHaveNone) {
  EXPECT_EQ(ChatFormat::Load(folder_).value(), nullptr);
  Write("tokenizer_config.json", Json{{"chat_template", nullptr}});
  EXPECT_EQ(ChatFormat::Load(folder_).value(), nullptr);
}

TEST_F(ChatFormatTest, TextOfTheConfigWithItsTokens) {
  Write("tokenizer_config.json",
        Json{{"chat_template", kTemplate}, {"bos_token", "<s>"}, {"pad_token", nullptr}});
  Write("special_tokens_map.json",
        Json{{"bos_token", "unused"}, {"eos_token", {{"content", "</s>"}}}, {"pad_token", "p"}});
  EXPECT_EQ(ChatFormat::Load(folder_).value()->source(), "tokenizer_config.json");
  EXPECT_EQ(Text(), "<s>user:Hi</s>False>True");
  EXPECT_EQ(Text(R"([{"b": 1, "a": 2}])", /*opens_answer=*/false),
            R"(<s>user:Hi</s>[{"b": 1, "a": 2}]FalseTrue)");
}

TEST_F(ChatFormatTest, TheFileComesFirst) {
  Write("tokenizer_config.json", Json{{"chat_template", "config"}});
  Write("chat_template.jinja", std::string("file\n"));
  EXPECT_EQ(ChatFormat::Load(folder_).value()->source(), "chat_template.jinja");
  EXPECT_EQ(Text(), "file");
}

TEST_F(ChatFormatTest, NamedOnesByWhetherThereAreTools) {
  Write("tokenizer_config.json", Json{{"chat_template",
                                       {{{"name", "default"}, {"template", "usual"}},
                                        {{"name", "tool_use"}, {"template", "with tools"}}}}});
  EXPECT_EQ(Text(), "usual");
  EXPECT_EQ(Text("[]"), "with tools");
}

TEST_F(ChatFormatTest, FilesOfAdditionalTemplates) {
  Write("tokenizer_config.json", Json{{"chat_template",
                                       {{{"name", "default"}, {"template", "config"}},
                                        {{"name", "tool_use"}, {"template", "config, tools"}}}}});
  std::filesystem::create_directories(folder_ + "/additional_chat_templates");
  Write("additional_chat_templates/rag.jinja", std::string("{% of nobody's use %}"));
  EXPECT_EQ(Text() + ", " + Text("[]"), "config, config, tools");
  Write("additional_chat_templates/tool_use.jinja", std::string("file, tools"));
  EXPECT_EQ(Text() + ", " + Text("[]"), "config, file, tools");
  Write("chat_template.jinja", std::string("file"));
  EXPECT_EQ(Text() + ", " + Text("[]"), "file, file, tools");
  std::filesystem::remove(folder_ + "/additional_chat_templates/tool_use.jinja");
  EXPECT_EQ(Text() + ", " + Text("[]"), "file, file");
  Write("additional_chat_templates/default.jinja", std::string("named"));
  EXPECT_EQ(ChatFormat::Load(folder_).value()->source(), "default.jinja");
  Write("additional_chat_templates/tool_use.jinja", std::string("{% if %}"));
  EXPECT_THAT(Error(), StartsWith("/additional_chat_templates/tool_use.jinja, line 1: syntax: "));
}

TEST_F(ChatFormatTest, TheFileOfProcessors) {
  Write("tokenizer_config.json", Json{{"chat_template", "config"}});
  Write("chat_template.json", Json{{"chat_template", "processor"}});
  EXPECT_EQ(Text(), "processor");
  EXPECT_EQ(ChatFormat::Load(folder_).value()->source(), "chat_template.json");
  Write("chat_template.json", Json{{"chat_template", "{{"}});
  EXPECT_THAT(Error(), StartsWith("/chat_template.json: chat_template, line 1: syntax: "));
  Write("chat_template.jinja", std::string("file"));
  EXPECT_EQ(Text(), "file");
}

TEST_F(ChatFormatTest, AFileInPlaceOfTheFolders) {
  Write("tokenizer_config.json", Json{{"chat_template", "config"}, {"bos_token", "<s>"}});
  Write("other.jinja", std::string("{{ bos_token }}other"));
  const auto format = ChatFormat::Load(folder_, folder_ + "/other.jinja");
  EXPECT_EQ((*format)->Render({}, TestNow()).value(), "<s>other");
  EXPECT_EQ((*format)->source(), folder_ + "/other.jinja");
  EXPECT_EQ(ChatFormat::Load(folder_, folder_ + "/none").status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(ChatFormatTest, ToolsAreAList) {
  Write("chat_template.jinja", std::string("{{ tools }}"));
  EXPECT_EQ(Text(), "None");
  EXPECT_EQ(Text("[1]"), "[1]");
  for (const std::string tools : {"{}", "[", "[{\"a\": 1, \"a\": 2}]"}) {
    const absl::Status status =
        ChatFormat::Load(folder_).value()->Render({.tools_json = tools}, TestNow()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), StartsWith("tools_json: "));
  }
}

TEST_F(ChatFormatTest, FurtherVariablesKeepTheOrderOfTheirKeys) {
  Write("chat_template.jinja", std::string("{{ documents | tojson }}{{ b.z }}"));
  const auto format = ChatFormat::Load(folder_).value();
  const auto text = [&](const char* args) {
    return format->Render({.args_json = args}, TestNow()).value();
  };
  EXPECT_EQ(text(R"({"documents": [{"title": "A", "text": "b"}], "b": {"z": 1, "a": 2}})"),
            R"([{"title": "A", "text": "b"}]1)");
  for (const std::string args : {"[]", "{", "{\"a\": 1, \"a\": 2}"}) {
    const absl::Status status = format->Render({.args_json = args}, TestNow()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), StartsWith("template_args_json: "));
  }
}

TEST_F(ChatFormatTest, ErrorsNameTheFile) {
  Write("chat_template.jinja", std::string("a\n{% if %}"));
  EXPECT_THAT(Error(), StartsWith("/chat_template.jinja, line 2: syntax: expected an expression"));
  std::filesystem::remove(folder_ + "/chat_template.jinja");
  Write("tokenizer_config.json", Json{{"chat_template", "{{"}});
  EXPECT_THAT(Error(), StartsWith("/tokenizer_config.json: chat_template, line 1: syntax: "));
  Write("tokenizer_config.json", Json{{"chat_template", 5}});
  EXPECT_THAT(Error(), EndsWith(": chat_template: expected a text, or a list of named ones with "
                                "one named default"));
  Write("tokenizer_config.json", Json{{"chat_template", {{{"name", "default"}, {"template", 5}}}}});
  EXPECT_THAT(Error(), EndsWith("with one named default"));
  Write("tokenizer_config.json", std::string("{"));
  EXPECT_THAT(Error(), StartsWith("/tokenizer_config.json: not valid JSON: line 1"));
}

}  // namespace
}  // namespace ovq::jinja::test
