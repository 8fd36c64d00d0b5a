#include "server/apis/constraint_fields.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/common/error_facts.h"
#include "server/http/http_errors.h"

namespace ovq::server {
namespace {

// The request's constraint, which the field asks for; it is the only one.
v1::Constraint& NewConstraint(BodyFields& fields, const std::string& field, OpenAiRequest& to) {
  if (to.message.sampling().has_constraint()) {
    fields.Fail(engine::BadField(field, absl::StrCat("it without ", to.constraint_field), "both"));
  }
  to.constraint_field = field;
  return *to.message.mutable_sampling()->mutable_constraint();
}

void SetSchema(BodyFields& fields, const std::string& field, const Json& schema,
               OpenAiRequest& to) {
  if (!schema.is_object() && !schema.is_boolean()) {
    return fields.Fail(engine::BadField(field, "a JSON schema", Shown(schema)));
  }
  NewConstraint(fields, field, to).set_json_schema(Dump(schema));
}

// Reads a schema that is an object or its text.
void ReadSchema(BodyFields& fields, const char* name, OpenAiRequest& to) {
  const Json* const schema = fields.Any(name);
  if (schema == nullptr || IsDefault(*schema)) return;
  if (!schema->is_string()) return SetSchema(fields, fields.Path(name), *schema, to);
  NewConstraint(fields, fields.Path(name), to).set_json_schema(schema->get<std::string>());
}

void ReadRegex(BodyFields& fields, const char* name, OpenAiRequest& to) {
  const std::string text = fields.Text(name).value_or("");
  if (!text.empty()) NewConstraint(fields, fields.Path(name), to).set_regex(text);
}

void ReadGrammar(BodyFields& fields, const char* name, OpenAiRequest& to) {
  const std::string text = fields.Text(name).value_or("");
  if (!text.empty()) NewConstraint(fields, fields.Path(name), to).set_grammar(text);
}

void ReadChoices(BodyFields& fields, const char* name, OpenAiRequest& to) {
  const Json* const list = fields.Any(name);
  if (list == nullptr || IsDefault(*list)) return;
  if (!list->is_array()) return fields.Expected(name, "a list of texts", *list);
  if (std::ssize(*list) > engine::kMaxChoices) {
    return fields.Fail(engine::BadField(
        fields.Path(name), absl::StrCat("at most ", engine::kMaxChoices, " texts"), list->size()));
  }
  v1::Choices& to_choices = *NewConstraint(fields, fields.Path(name), to).mutable_choice();
  for (const Json& text : *list) {
    if (!text.is_string()) return fields.Expected(name, "a list of texts", text);
    to_choices.add_texts(text.get<std::string>());
  }
}

void ReadStructuredOutputs(BodyFields& fields, OpenAiRequest& to) {
  std::optional<BodyFields> inner = fields.Object("structured_outputs");
  if (!inner) return;
  ReadSchema(*inner, "json", to);
  ReadRegex(*inner, "regex", to);
  ReadChoices(*inner, "choice", to);
  ReadGrammar(*inner, "grammar", to);
  if (inner->Bool("json_object").value_or(false)) {
    NewConstraint(*inner, inner->Path("json_object"), to).set_json_object(true);
  }
  for (const char* name : {"structural_tag", "whitespace_pattern"}) inner->Refuse(name);
  for (const char* name :
       {"disable_any_whitespace", "disable_additional_properties", "disable_fallback"}) {
    inner->Refuse(name, "false", {false});
  }
  fields.Fail(inner->Finish());
}

// Reads {"name", "description", "schema", "strict"}. A form is always kept as if it was strict.
void ReadSchemaFields(BodyFields& inner, OpenAiRequest& to) {
  for (const char* name : {"name", "description"}) (void)inner.Text(name);
  (void)inner.Bool("strict");
  const Json* const schema = inner.Any("schema");
  if (schema == nullptr) {
    return inner.Fail(engine::BadField(inner.Path("schema"), "a JSON schema", "none"));
  }
  SetSchema(inner, inner.Path("schema"), *schema, to);
}

}  // namespace

void ReadFormat(BodyFields& fields, const char* name, bool flat, OpenAiRequest& to) {
  std::optional<BodyFields> inner = fields.Object(name, "an object with a type");
  if (!inner) return;
  const std::string type = inner->Text("type").value_or("");
  if (type == "json_object") {
    // llama.cpp's servers read a schema beside the type.
    const Json* const schema = inner->Any("schema");
    if (schema != nullptr && !IsDefault(*schema)) {
      SetSchema(*inner, inner->Path("schema"), *schema, to);
    } else {
      NewConstraint(*inner, fields.Path(name), to).set_json_object(true);
    }
  } else if (type == "json_schema" && flat) {
    ReadSchemaFields(*inner, to);
  } else if (type == "json_schema") {
    const Json* const holder = inner->Any("json_schema");
    if (holder == nullptr || !holder->is_object()) {
      inner->Fail(engine::BadField(inner->Path("json_schema"), "an object with a schema",
                                   holder == nullptr ? "none" : Shown(*holder)));
    } else {
      BodyFields held(*holder, inner->Path("json_schema."));
      ReadSchemaFields(held, to);
      inner->Fail(held.Finish());
    }
  } else if (type != "text") {
    inner->Fail(Unsupported(inner->Path("type"), "text, json_object or json_schema"));
  }
  fields.Fail(inner->Finish());
}

void ReadConstraintFields(BodyFields& fields, OpenAiRequest& to) {
  ReadFormat(fields, "response_format", /*flat=*/false, to);
  ReadStructuredOutputs(fields, to);
  ReadSchema(fields, "guided_json", to);
  ReadRegex(fields, "guided_regex", to);
  ReadChoices(fields, "guided_choice", to);
  ReadGrammar(fields, "guided_grammar", to);
  ReadGrammar(fields, "grammar", to);
  ReadSchema(fields, "json_schema", to);
}

}  // namespace ovq::server
