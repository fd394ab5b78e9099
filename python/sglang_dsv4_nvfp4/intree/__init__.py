"""The in-tree form: an SGLang source tree that has this feature itself.

``places`` says where our modules go, ``landing`` what they say there; ``sites`` and
``toplevel`` are places in SGLang's own files, ``edits`` what is written at them, made from
the seam table; ``tree`` does all of it to a folder, or undoes it. ``aliases`` lets this
package's tools and tests run on such a tree.

Not in-tree: it makes one.
"""
