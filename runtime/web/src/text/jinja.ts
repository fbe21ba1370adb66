/** The interpreter of chat templates, apart from the rest so that it is loaded only where one is needed. */
export { Template } from "@huggingface/jinja";
