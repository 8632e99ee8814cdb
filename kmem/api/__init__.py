"""The Python API: `import kmem; result = kmem.optimize(model, inputs=...)`.

`kmem` itself gives these names and loads their modules, and torch with them, when they are first
asked for. The command line calls the same functions below it.

- keywords.py: what a caller may say by keyword, held to what there is.
- from_module.py: a problem file written for a module that lives in this process.
- optimizing.py: `kmem.optimize`.
- loading.py: `kmem.load`, a run or an exported package.
- applying.py: `kmem.apply`.
- judging.py: `kmem.verify`.
- searching.py: `kmem.search_skills`.
"""
