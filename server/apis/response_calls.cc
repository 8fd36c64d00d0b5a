// /v1/responses: each stored response has a session, and the next response goes on in a fork of it.
// So the conversation before is not prefilled again, and several responses can go on from one.
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/random.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "server/apis/chat_messages.h"
#include "server/apis/generation_call.h"
#include "server/apis/http_handlers.h"
#include "server/apis/response_answer.h"
#include "server/apis/response_request.h"
#include "server/calls/handlers.h"
#include "server/engine/common/error_facts.h"
#include "server/http/http_body.h"
#include "server/http/http_errors.h"

namespace ovq::server {
namespace {

constexpr size_t kKeyDigits = 16;
constexpr char kInputItemPrefix[] = "item_";  // of an item of the input without an id

// Puts two messages of one letter in place of the messages that the session has read already.
// NewText renders the known messages only to cut their text off again, so their content does not
// matter, and neither server nor client has to keep or send them. Where results of tools follow,
// the answer has the calls that they name.
void StandInForKnown(OpenAiRequest& request) {
  v1::Conversation& conversation = *request.message.mutable_prompt()->mutable_conversation();
  v1::Conversation whole;
  AddMessage("user", "x", whole);
  v1::ChatMessage& answer = AddMessage("assistant", "x", whole);
  for (const v1::ChatMessage& message : conversation.messages()) {
    if (message.role() != "tool") break;
    v1::ToolCall& call = *answer.add_tool_calls();
    call.set_id(message.tool_call_id());
    call.set_name("x");
    answer.clear_content();
  }
  whole.set_known(2);
  whole.MergeFrom(conversation);
  conversation.Swap(&whole);
  request.places.insert(request.places.begin(), 2, {.field = "previous_response_id"});
}

// The text that is kept with a stored response: a line with the digests of the instructions and of
// the tools, its own or inherited ones ("" without), a line with the response, and one with its
// request's input.
struct StoredResponse {
  std::string instructions, tools;
  std::string response, input;  // as JSON, which has no line ends

  std::string Text() const {
    return absl::StrCat(instructions, " ", tools, "\n", response, "\n", input);
  }
};

std::optional<StoredResponse> ReadStored(const engine::SessionText& text) {
  if (text == nullptr) return std::nullopt;
  const std::vector<std::string> lines = absl::StrSplit(*text, '\n');
  const std::vector<std::string> digests = absl::StrSplit(lines[0], ' ');
  if (lines.size() != 3 || digests.size() != 2) return std::nullopt;
  return StoredResponse{digests[0], digests[1], lines[1], lines[2]};
}

// JSON of a stored response. A file that somebody else wrote may hold anything: what is no JSON is
// null.
Json ParseStored(const std::string& text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_discarded() ? Json() : json;
}

// Takes memory for a stored response's text, and for what becomes of it.
std::function<absl::Status(size_t)> Reserve(ByteHold& memory) {
  constexpr size_t kBytesPerChar = 8;  // as parsed JSON and in an answer
  return [&memory](size_t bytes) { return ReserveBytes(memory, kBytesPerChar * bytes); };
}

// NotFound without such a response; unset if its text is not kept. Blocks.
absl::StatusOr<std::optional<StoredResponse>> FindStored(HttpCall& call, const std::string& id,
                                                         ByteHold& memory) {
  ASSIGN_OR_RETURN(const engine::SessionText text, call.services().engine.sessions().GetText(
                                                       id, call.caller().tenant, Reserve(memory)));
  return ReadStored(text);
}

absl::Status NoPrevious() {
  return NoResponse("previous_response_id", "previous_response_not_found");
}

// One POST: gets a session, then generates in it.
class ResponseRun : public std::enable_shared_from_this<ResponseRun> {
 public:
  ResponseRun(HttpCallPtr call, ResponseRequest request)
      : call_(std::move(call)), request_(std::move(request)) {}

  // Checks the instructions and tools against those of the previous response, whose session has
  // read them.
  absl::Status CheckInstructions() {
    if (request_.instructions) digest_ = Digest(*request_.instructions);
    const std::string& tools = request_.message.prompt().conversation().tools_json();
    if (!tools.empty()) tools_digest_ = Digest(tools);
    if (!request_.previous) return absl::OkStatus();
    const auto found = FindStored(*call_, *request_.previous, call_->record().memory());
    if (absl::IsNotFound(found.status())) return NoPrevious();
    RETURN_IF_ERROR(found.status());
    const std::optional<StoredResponse>& previous = *found;
    if (!tools_digest_.empty() && (!previous || tools_digest_ != previous->tools)) {
      return engine::BadField(
          "tools", "none, or those of the response before, which the model has read", "others");
    }
    if (previous) tools_digest_ = previous->tools;
    if (previous && (!request_.instructions || digest_ == previous->instructions)) {
      digest_ = previous->instructions;
      return absl::OkStatus();
    }
    if (!request_.instructions) return absl::OkStatus();
    return engine::BadField(
        "instructions", "none, or those of the response before, which it goes on with", "others");
  }

  void Start() {
    if (request_.previous) {
      v1::ForkSessionRequest fork;
      fork.set_session_id(*request_.previous);
      return ForkSession(call_->record(), fork, [self = shared_from_this()](auto forked) {
        self->Made(forked.ok() ? absl::StatusOr<v1::Session>(forked->sessions(0))
                               : forked.status());
      });
    }
    if (!request_.store) return Run("");
    // A key for balancers to route by.
    call_->SetSessionKey(UnguessableHex().substr(0, kKeyDigits));
    v1::CreateSessionRequest create;
    create.set_memory(request_.message.memory());
    if (request_.message.has_max_centroids()) {
      create.set_max_centroids(request_.message.max_centroids());
    }
    request_.message.clear_memory();
    request_.message.clear_max_centroids();
    CreateSession(call_->record(), create,
                  [self = shared_from_this()](auto session) { self->Made(std::move(session)); });
  }

 private:
  static std::string Digest(const std::string& text) {
    Sha256 digest;
    digest.AddText(text);
    return digest.Hex();
  }

  // Called on the engine's thread once the session exists.
  void Made(absl::StatusOr<v1::Session> session) {
    call_->services().blocking.Run(call_->record().client(), [self = shared_from_this(), session] {
      if (session.ok()) {
        if (session->position() > 0) {
          StandInForKnown(self->request_);
        }
        return self->Run(session->session_id());
      }
      const bool gone = self->request_.previous && absl::IsNotFound(session.status());
      self->call_->Fail(gone ? NoPrevious() : session.status());
    });
  }

  void Run(const std::string& session_id) {
    if (!session_id.empty()) request_.message.set_session_id(session_id);
    session_id_ = session_id;
    const std::string id =
        ResponseId(request_.store ? session_id : absl::StrCat(UnguessableHex(), "_not_stored"));
    auto answer = std::make_unique<ResponseAnswer>(
        request_, id, call_->services().description.names.front(),
        call_->services().engine.model().tokenizer, absl::ToUnixSeconds(absl::Now()));
    GenerationHooks hooks = {
        .translate_error =
            [fields = CallerNames(request_)](const absl::Status& status) {
              return ToOpenAiError(status, fields);
            },
        .ended = [self = shared_from_this(), &answer = *answer](
                     const absl::Status& status) { return self->Ended(status, answer); }};
    StartGeneration(call_, std::move(answer), request_.message, std::move(hooks));
  }

  absl::Status Ended(absl::Status status, const ResponseAnswer& answer) {
    if (session_id_.empty()) return status;
    engine::SessionOperations& sessions = call_->services().engine.sessions();
    const std::string& tenant = call_->caller().tenant;
    if (status.ok() && request_.store) {
      const StoredResponse stored = {digest_, tools_digest_, Dump(answer.Response()),
                                     std::move(request_.input)};
      // NotFound is fine: the session expired or was deleted meanwhile.
      const absl::Status kept = sessions.PutText(session_id_, tenant, stored.Text());
      if (kept.ok() || absl::IsNotFound(kept)) return status;
      status = kept;
    }
    (void)sessions.Delete(session_id_, tenant);
    return status;
  }

  const HttpCallPtr call_;
  ResponseRequest request_;
  std::string session_id_;  // empty: one shot
  // Digests of the instructions and of the tools, own or inherited; "" without.
  std::string digest_, tools_digest_;
};

// Finds output items of the caller's stored responses. The output of the last one stays parsed, as
// references to the items of one response follow one another.
class StoredItems {
 public:
  explicit StoredItems(HttpCall& call) : call_(call) {}

  // Takes memory of the call for the item alone. Blocks.
  absl::StatusOr<Json> Find(const std::string& id) {
    const std::optional<ItemPlace> place = FindItemPlace(id);
    if (!place) return NoResponse("input.id", nullptr);
    if (place->session_id != session_id_) RETURN_IF_ERROR(Read(place->session_id));
    if (!output_.is_array() || place->index >= output_.size()) {
      return NoResponse("input.id", nullptr);
    }
    const Json& item = output_[place->index];
    RETURN_IF_ERROR(Reserve(call_.record().memory())(Dump(item).size()));
    return item;
  }

 private:
  absl::Status Read(const std::string& session_id) {
    session_id_.clear();
    output_ = Json();
    memory_.reset();  // before that of the next one is taken
    memory_ = std::make_unique<ByteHold>(call_.services().engine.options().request_memory,
                                         call_.client());
    const auto stored = FindStored(call_, session_id, *memory_);
    if (!stored.ok() && !absl::IsNotFound(stored.status())) return stored.status();
    if (!stored.ok() || !*stored) return NoResponse("input.id", nullptr);
    Json response = ParseStored((*stored)->response);
    if (response.is_object() && response.contains("output"))
      output_ = std::move(response["output"]);
    session_id_ = session_id;
    return absl::OkStatus();
  }

  HttpCall& call_;
  std::string session_id_;            // of the response that was read last; empty: none
  std::unique_ptr<ByteHold> memory_;  // of its output
  Json output_;
};

absl::StatusOr<ResponseRequest> ReadBody(HttpCall& call) {
  ASSIGN_OR_RETURN(const Json body, JsonBody(call));
  StoredItems items(call);
  return ReadResponse(body, call.services().description.names,
                      [&items](const std::string& id) { return items.Find(id); });
}

// Answers with what `show` makes of the stored response that the path names.
absl::Status ShowStored(const HttpCallPtr& call, const PathWords& words,
                        std::function<absl::StatusOr<std::string>(StoredResponse)> show) {
  const std::optional<std::string> session = ResponseSessionId(words.front());
  if (!session) return NoResponse("response_id", nullptr);
  call->record().summary().SetSession(*session);
  const auto answer = [call,
                       show = std::move(show)](const absl::StatusOr<engine::SessionText>& text) {
    if (absl::IsNotFound(text.status())) return call->Fail(NoResponse("response_id", nullptr));
    if (!text.ok()) return call->Fail(text.status());
    std::optional<StoredResponse> stored = ReadStored(*text);
    if (!stored) {
      return call->Fail(
          NotFound("response_id: its text is not kept any more; it can still be continued",
                   "response_id", "text_not_kept"));
    }
    absl::StatusOr<std::string> shown = show(*std::move(stored));
    shown.ok() ? call->Reply(200, *std::move(shown)) : call->Fail(shown.status());
  };
  // Another thread makes the answer: the engine's or the folder's may call back.
  call->services().engine.sessions().GetText(
      *session, call->caller().tenant, Reserve(call->record().memory()),
      [call, answer](const absl::StatusOr<engine::SessionText>& text) {
        call->services().blocking.Run(call->record().client(), [answer, text] { answer(text); });
      });
  return absl::OkStatus();
}

// The items of a response's input as clients read them: each with a type, an id, and parts.
Json InputItems(const Json& input, const std::string& session_id) {
  Json items = Json::array();
  if (input.is_string()) items.push_back({{"role", "user"}, {"content", input}});
  for (const Json& item : input) {
    if (input.is_array() && item.is_object()) items.push_back(item);
  }
  for (size_t i = 0; i < items.size(); ++i) {
    Json& item = items[i];
    if (item.value("type", Json()).is_null()) item["type"] = "message";
    if (item.value("id", Json()).is_null()) {
      item["id"] = absl::StrCat(kInputItemPrefix, session_id, "_in", i);
    }
    if (item["type"] != "message") continue;
    item["status"] = "completed";
    if (Json& content = item["content"]; content.is_string()) {
      const bool own = item.value("role", Json()) == "assistant";
      content = Json::array({{{"type", own ? "output_text" : "input_text"}, {"text", content}}});
    }
  }
  return items;
}

// A page of the items, as the query asks for them.
struct ItemsPage {
  size_t limit = 20;
  bool newest_first = true;
  std::string after;  // the id of the last item of the page before; empty: from the first on
};
absl::StatusOr<ItemsPage> ReadItemsPage(const HttpCall& call) {
  constexpr uint32_t kMostItems = 100;
  ASSIGN_OR_RETURN(const std::optional<uint32_t> limit, call.QueryNumber("limit"));
  ItemsPage page = {.after = call.Query("after").value_or("")};
  const std::string order = call.Query("order").value_or("desc");
  if (order != "asc" && order != "desc") {
    return engine::BadField("order", "asc or desc", Quoted(order));
  }
  page.newest_first = order == "desc";
  if (limit && (*limit == 0 || *limit > kMostItems)) {
    return engine::BadField("limit", absl::StrCat("1 to ", kMostItems), absl::StrCat(*limit));
  }
  page.limit = limit.value_or(page.limit);
  return page;
}

absl::StatusOr<std::string> ShowItems(Json items, const ItemsPage& page) {
  if (page.newest_first) std::reverse(items.begin(), items.end());
  size_t begin = 0;
  if (!page.after.empty()) {
    const auto last =
        std::ranges::find_if(items, [&page](const Json& item) { return item["id"] == page.after; });
    if (last == items.end()) {
      return engine::BadField("after", "the id of an item of this input", Quoted(page.after));
    }
    begin = static_cast<size_t>(last - items.begin()) + 1;
  }
  Json data = Json::array();
  for (size_t i = begin; i < items.size() && data.size() < page.limit; ++i) {
    data.push_back(std::move(items[i]));
  }
  Json list = {{"object", "list"}, {"has_more", begin + data.size() < items.size()}};
  list["first_id"] = data.empty() ? Json() : data.front()["id"];
  list["last_id"] = data.empty() ? Json() : data.back()["id"];
  list["data"] = std::move(data);
  return Dump(list);
}

}  // namespace

absl::Status ServeResponses(const HttpCallPtr& call, const PathWords&) {
  ASSIGN_OR_RETURN(ResponseRequest request, ReadBody(*call));
  call->SetSessionKey(request.session_key);
  auto run = std::make_shared<ResponseRun>(call, std::move(request));
  RETURN_IF_ERROR(run->CheckInstructions());
  run->Start();
  return absl::OkStatus();
}

absl::Status ServeResponse(const HttpCallPtr& call, const PathWords& words) {
  return ShowStored(call, words, [](StoredResponse stored) { return std::move(stored.response); });
}

absl::Status ServeResponseInput(const HttpCallPtr& call, const PathWords& words) {
  ASSIGN_OR_RETURN(const ItemsPage page, ReadItemsPage(*call));
  return ShowStored(call, words, [page, id = words.front()](const StoredResponse& stored) {
    return ShowItems(InputItems(ParseStored(stored.input), *ResponseSessionId(id)), page);
  });
}

absl::Status ServeResponseDelete(const HttpCallPtr& call, const PathWords& words) {
  const std::optional<std::string> session = ResponseSessionId(words.front());
  if (!session) return NoResponse("response_id", nullptr);
  call->record().summary().SetSession(*session);
  const absl::Status status =
      call->services().engine.sessions().Delete(*session, call->caller().tenant);
  if (absl::IsNotFound(status)) return NoResponse("response_id", nullptr);
  RETURN_IF_ERROR(status);
  call->Reply(200, Dump({{"id", words.front()}, {"object", "response"}, {"deleted", true}}));
  return absl::OkStatus();
}

}  // namespace ovq::server
