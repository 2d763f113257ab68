"""The chat template of the small model."""

# The model's own ChatML template, the same to the byte for messages that carry text. The stock one drops an assistant
# turn's `tool_calls`, which leaves an empty turn in the history and the model then never calls (0 of 200 samples);
# here they are written as the text the model would have written.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if loop.first and message['role'] != 'system' -%}
{{- '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' -}}
{%- endif -%}
{{- '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') -}}
{%- for call in message['tool_calls'] or [] -%}
{%- set arguments = call['function']['arguments'] -%}
{{- '\\n' if message['content'] or not loop.first else '' -}}
{{- '<tool_call>\\n{"name": "' + call['function']['name'] + '", "arguments": ' -}}
{{- (arguments if arguments is string else arguments | tojson) + '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
