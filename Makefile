# Each target is `python3 bootstrap.py VERB`; bootstrap.py makes the environment first, where it is missing or outdated.
PYTHON ?= python3

.PHONY: lab test fast live soak bench release grade clean

# make lab [PORT=8889] [ARGS=--no-browser]: open the course in JupyterLab
lab:
	@$(PYTHON) bootstrap.py lab $(if $(PORT),--port $(PORT)) $(ARGS)

# everything there is: unit, contract, live, browser
test:
	@$(PYTHON) bootstrap.py test

# unit and contract tests
fast:
	@$(PYTHON) bootstrap.py fast

# make live [BACKEND=kind]: tests against real Ray processes and real clusters
live:
	@$(PYTHON) bootstrap.py live $(if $(BACKEND),--backend $(BACKEND))

# what takes hours: live tests at length, many Pods, hundreds of kills, all of it without root too
soak:
	@$(PYTHON) bootstrap.py soak

# paired timings
bench:
	@$(PYTHON) bootstrap.py bench

# make release [EX=ex01]: make exercises/ from solutions/
release:
	@$(PYTHON) bootstrap.py release $(EX)

# make grade EX=ex01 [ARGS=--trust]: grade what lies in grading/submitted/STUDENT/ex01/
grade:
	@$(PYTHON) bootstrap.py grade $(EX) $(ARGS)

# remove .venv, build/ and caches; your notebooks and progress stay
clean:
	@$(PYTHON) bootstrap.py clean
