"""The harness `acp`: any agent that speaks the Agent Client Protocol, started with the words that follow the name.

`agent:acp opencode acp` starts `opencode acp`, and sends it the prompt. The agent must be in the image, or come with
agent_setup or agent_packages; its own variables, in agent_env, tell it the model.
"""

from importlib import resources

from hermes_rl.agent.harnesses.harness import Agent

CLIENT = resources.files("hermes_rl.agent.harnesses").joinpath("acp_client.py").read_text()

AGENT = Agent(
    name="acp",
    version="1",
    about="any agent that speaks the Agent Client Protocol: agent:acp COMMAND",
    licence="the agent's",
    dialect="any",
    # Not through a file: rollouts on the backend `local` share /tmp. -I: modules of the task are not imported.
    command=f"exec python3 -I -c \"$(cat <<'END_OF_CLIENT'\n{CLIENT}END_OF_CLIENT\n)\"",
    env={"PROMPT_FILE": "{prompt_file}"},
    takes_arguments=True,
)
