// A whole server on a trivial model, for inputs that come one after another.
#pragma once

#include "tests/server/server_test_util.h"

namespace ovq::fuzz {

inline server::test::TestServer& WholeServer() {
  static server::test::TestServer server([] {
    server::test::TestServerOptions options;
    options.engine.seed = 1;
    options.engine.max_sessions = 16;
    options.engine.max_prompt_tokens = 5000;
    options.model.chat_template =
        "{% if messages|length > 3 %}long {% endif %}"
        "{% for m in messages %}{% if m['role'] == 'nobody' %}{{ raise_exception('who?') }}{% "
        "endif %}"
        "{{ m['content'] }}{% if m['role'] == 'assistant' %}<|end|>{% endif %}{% endfor %}";
    options.log_requests = server::LogRequests::kNone;
    return options;
  }());
  return server;
}

// A session that has prefilled "hi" and finished an answer.
inline std::string SomeSession(server::test::TestServer& server) {
  v1::CreateSessionRequest request;
  for (const uint32_t id : {104u, 105u, static_cast<uint32_t>(engine::test::kEos)})
    request.mutable_prompt()->mutable_token_ids()->add_ids(id);
  return server.NewSession(request);
}

// Deletes the sessions and waits until nothing is left of what an input started.
inline void EndSessions(server::test::TestServer& server) {
  engine::Engine& engine = server.engine();
  const engine::SessionPage page = engine.sessions().List(std::nullopt, 1000, "").value();
  for (const engine::SessionInfo& session : page.sessions) {
    (void)engine.sessions().Delete(session.id, std::nullopt);
  }
  const auto ended = [](const engine::EngineStats& stats) {
    return stats.state_bytes_reserved == 0 && stats.requests_running == 0 &&
           stats.sessions_idle == 0;
  };
  // Usually true after the next iteration, long before a poll 10 ms later.
  for (int i = 0; i < 2 && !ended(engine.Stats()); ++i) (void)engine.sessions().Export("none", "");
  server.WaitForStats(ended);
}

}  // namespace ovq::fuzz
