"""Python with the official openai and anthropic packages, for an agent of your own in one file.

agent_files lays that file out as agent.py; examples/agent_openai.py and examples/agent_anthropic.py are two. It is
taken out of the workspace before it starts, so that this holds what the item put there and nothing else.
"""

from hermes_rl.agents.agent import Agent, pins

AGENT = Agent(
    name="sdk",
    version="1",
    about="agent.py of your own, with the official openai and anthropic packages",
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
)
