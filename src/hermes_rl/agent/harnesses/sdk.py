"""The harness `sdk`: your own agent in one file, run with the official openai and anthropic packages.

agent_files provides that file as agent.py; see examples/agent_openai.py and examples/agent_anthropic.py. It is moved
out of the workspace before it starts, so that the workspace holds only what the item put there. `agent:sdk WORDS`
passes it arguments.
"""

from hermes_rl.agent.harnesses.harness import Agent, pins

AGENT = Agent(
    name="sdk",
    version="1",
    about="your own agent.py, with the official openai and anthropic packages",
    licence="yours",
    dialect="any",
    command="mv agent.py /tmp/agent.py && exec /agent/bin/python /tmp/agent.py",
    env={
        "OPENAI_BASE_URL": "{base_url}",
        "OPENAI_API_KEY": "{key}",
        "ANTHROPIC_BASE_URL": "{origin}",
        "ANTHROPIC_API_KEY": "{key}",
        "MODEL": "{model}",
        "PROMPT_FILE": "{prompt_file}",
        "MESSAGES_FILE": "{messages_file}",
    },
    pip=pins("sdk"),
    takes_arguments=True,
)
