// A whole server on a model that costs nothing, for inputs that come one after another.
#pragma once

#include "tests/server/server_test_util.h"

namespace ovq::fuzz {

inline test::TestServer& WholeServer() {
  static test::TestServer server([] {
    test::TestServerOptions options;
    options.engine.seed = 1;
    options.engine.max_sessions = 16;
    options.model.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}";
    options.log_requests = LogRequests::kNone;
    return options;
  }());
  return server;
}

// Deletes the sessions, and waits until nothing is left of what an input began.
inline void EndSessions(test::TestServer& server) {
  Engine& engine = server.engine();
  const SessionPage page = engine.ListSessions(std::nullopt, 1000, "").value();
  for (const SessionInfo& session : page.sessions) {
    (void)engine.DeleteSession(session.id, std::nullopt);
  }
  server.WaitForStats([](const EngineStats& stats) {
    return stats.state_bytes_reserved == 0 && stats.requests_running == 0 &&
           stats.sessions_idle == 0;
  });
}

}  // namespace ovq::fuzz
