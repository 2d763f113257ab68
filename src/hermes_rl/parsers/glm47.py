"""GLM-4.7 writes tool calls as GLM-4.5 does, without the newlines."""

from hermes_rl.parsers.glm45 import Glm45Parser, glm_format


class Glm47Parser(Glm45Parser):
    name = "glm47"
    tool_format = glm_format("")
