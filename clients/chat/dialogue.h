// Defines Dialogue: an interactive conversation of several turns, with questions and slash
// commands.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "clients/chat/conversation.h"
#include "clients/chat/options.h"
#include "clients/chat/terminal.h"

namespace ovq::clients {

// All methods except OnInterrupt and Abandon must be called on one thread.
class Dialogue {
 public:
  // The /set command changes `options.turn`.
  Dialogue(const Connection& connection, ChatOptions& options, const Screen& screen, Input& input);

  // Asks the question if there is one, else reads turns from the input until it ends. Returns the
  // exit status; errors have been printed by then.
  int Run(const std::optional<std::string>& question);

  // Handles SIGINT: cancels the running answer. It has no effect where the answer has just ended
  // and the input does not read yet. Returns false if none runs otherwise, or it was cancelled
  // already.
  bool OnInterrupt();

  // Removes the file of a /save that has not ended. The program must end then: the lock stays held,
  // so that nothing reports that file as written.
  void Abandon();

 private:
  struct Command;
  static const Command kCommands[];

  // Sets model_. Returns false after printing the error.
  bool AskForModel();
  // Makes questions messages where the model has a chat template and nothing speaks against it.
  void ChooseMessages();
  // Shows the model and its server. Returns false after printing the error.
  bool Greet();
  // Starts a new conversation in place of the current one. Returns false after printing the error.
  bool Begin();
  // Ends the current conversation. Returns false after printing the error.
  bool End();
  void ReadTurns();
  void Do(std::string_view line);
  void Question(std::string_view text);

  const std::string& session_id() const { return conversation_->session().session_id(); }

  void Help();
  void Model();
  void Settings(const std::string& rest);
  void Reset();
  void Undo();
  // Exports the session to a new file, which is removed if that does not end well.
  void Save(const std::string& path);

  const Connection& connection_;
  ChatOptions& options_;
  const Screen& screen_;
  Input& input_;
  v1::ModelInfo model_;  // as the server described it to AskForModel
  std::mutex mutex_;     // lets OnInterrupt read the pointer, and Abandon the path
  std::unique_ptr<Conversation> conversation_;
  std::string unfinished_file_;      // path of the file that /save is writing
  std::atomic<bool> asked_ = false;  // a question was asked since the input gave a line
  bool typed_ = false;               // turns are typed on a terminal
  bool open_ = false;                // the conversation has begun and End was not called
  bool over_ = false;                // no further turn follows
  bool whole_ = true;                // no call has ended on its own
};

}  // namespace ovq::clients
