# how: shell
# line: mkdir app; echo 'print(__file__, __name__)' > app/__main__.py; touch -d @1000000000 app/__main__.py; python -m zipapp app; RANK=0 WORLD_SIZE=1 python app.pyz
